"""`zero1` to `zero3`."""
