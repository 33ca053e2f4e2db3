"""What a training step may do and record."""
