"""Process groups, collectives and liveness: how ranks meet. Knows nothing of what they exchange, nor of training."""
