"""Checkpoints: what is saved, what is refused, and going on from them."""
