"""Faults as a matrix: every kind in every phase on every choice of ranks, in each mode. Owns what each cell means, what is
documented of it, and the play of cells in virtual time and in processes."""
