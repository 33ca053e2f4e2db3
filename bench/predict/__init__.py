"""How fast runs would be that nobody made: calibrated on a run's own records, played by the core of production in virtual
time. Trains nothing."""
