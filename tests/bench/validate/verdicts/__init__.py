"""Tests of verdicts, from the folder to the line, and of their output."""
