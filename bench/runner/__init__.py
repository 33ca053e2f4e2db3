"""From a configuration to a run folder: checks, plan, launch, journal, progress, resume."""
