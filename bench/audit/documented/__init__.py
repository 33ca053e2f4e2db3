"""Computes what a run must do by the documents: seeds, orders of samples, schedules. Without the engine's code."""
