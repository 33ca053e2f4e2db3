"""Compares the bundled models and data sets with committed descriptions: what they are, and what they compute."""
