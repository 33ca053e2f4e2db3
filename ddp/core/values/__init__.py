"""Own values that are never modified, and containers by rank that share what did not change. Must not know ranks or
training."""
