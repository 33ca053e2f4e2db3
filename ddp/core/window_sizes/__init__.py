"""Decide how many steps ranks of unequal speed get between two averages (El Che). Must not know the coordinator's
state."""
