"""Decides what page one of the report says: the recommended way of training, key figures, questions and answers."""
