"""Process groups, collectives and liveness of ranks. Knows nothing of the data exchanged, nor of training."""
