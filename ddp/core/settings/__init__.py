"""Own the settings and facts of a run that the core reads, as frozen values. Must not decide anything."""
