"""How a replica's parameters change: optimizers and their state, learning rates, the scale of a loss in half precision."""
