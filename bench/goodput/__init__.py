"""What a rate of failures costs: histories of faults, played in virtual time against the core of production, by way of going
on. Trains nothing, and knows nothing of run folders."""
