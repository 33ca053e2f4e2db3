"""One replica: its model, optimizer, data and flat state, and how it takes a training step. Knows nothing of other
ranks."""
