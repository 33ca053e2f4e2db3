"""Read a run's records for all checks. Must not judge."""
