"""Decide whether the files of a run may be trusted, and derive values from them. Must not know baselines."""
