"""One replica: model, optimizer, data, flat state, and what a step is. Knows nothing of other ranks."""
