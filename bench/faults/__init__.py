"""The fault matrix: every kind of fault, in every phase, on every choice of ranks, in each mode. Owns what each cell
means and what the documents promise for it, and plays cells in virtual time and in processes."""
