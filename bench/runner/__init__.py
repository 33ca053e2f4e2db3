"""Own the way from a plan to a run folder: launch, progress, resume, replay, other hosts."""
