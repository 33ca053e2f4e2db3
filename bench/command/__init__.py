"""Own the command line: its verbs and their printed output. Decides nothing about training."""
