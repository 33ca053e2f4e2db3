"""What page one of the report says: the recommended way of training, key figures, and questions with their answers."""
