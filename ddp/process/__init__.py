"""Processes, channels, clocks and scratch files: what a rank runs in. Knows nothing of models or training.

Importing this package imports no torch, as the harness reads records with its codec."""
