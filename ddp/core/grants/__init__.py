"""Decide which rank gets which samples next, and how far it may run ahead. Must not know policies."""
