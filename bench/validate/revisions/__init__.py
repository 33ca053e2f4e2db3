"""Decide how baselines change: proposals, what makes one weaker, and their history in git. Must not judge runs."""
