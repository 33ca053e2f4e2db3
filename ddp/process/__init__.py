"""Own processes, channels, clocks and scratch files: what a rank runs in. Knows nothing of models or training.

Importing this package imports no torch: the harness reads records with its codec.
"""
