"""The command line: verbs, overrides, Hydra, and what a person is told. Trains nothing itself."""
