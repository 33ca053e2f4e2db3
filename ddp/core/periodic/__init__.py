"""Decide when checkpoints, evaluations and sketches are due, and which rank does what of them. Must not know
policies."""
