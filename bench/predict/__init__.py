"""Predicts the speed of runs that were not trained: calibrated on a run's records, played by the production
coordinator in virtual time. Trains nothing."""
