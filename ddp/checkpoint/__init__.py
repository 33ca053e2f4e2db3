"""Own checkpoints: what lies in a folder, whether it can be believed, and how a run goes on from it."""
