"""Own checkpoints: the content of their folder, its validation, and how a run resumes from it."""
