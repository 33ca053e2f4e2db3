"""Sweeps that a scheduler or a cluster runs, and the progress of a sweep."""
