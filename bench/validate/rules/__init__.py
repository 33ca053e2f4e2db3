"""Recompute what policies, guards and ranks must have done. Must not import the code that did it."""
