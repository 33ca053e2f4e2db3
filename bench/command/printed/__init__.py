"""Prints what commands say: the page of `--help`, the lines at the end of a run, verdicts in words."""
