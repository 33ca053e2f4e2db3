"""Own the command line: the verbs, and what is printed. Decides nothing about training."""
