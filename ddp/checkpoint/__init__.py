"""Own checkpoints: what a folder holds, whether it can be believed, and how a run resumes from it."""
