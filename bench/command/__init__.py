"""The command line: verbs, overrides, Hydra, and what is printed. Trains nothing itself."""
