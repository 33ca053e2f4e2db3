"""Compare states, averages and checkpoints by their sketches. Must not know baselines or other runs."""
