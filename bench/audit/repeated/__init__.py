"""Steps and evaluations of a run, repeated in plain PyTorch, and compared with what ranks kept of them."""
