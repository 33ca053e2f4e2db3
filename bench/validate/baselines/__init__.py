"""Own baselines: their file, what must be equal to compare with one, and which one a cell gets. Must not know
checks."""
