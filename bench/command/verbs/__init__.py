"""Own the verbs of the command line, but for those that train: their arguments, and what they print."""
