"""Decide whether emulated devices, links and virtual steps took the time that they had to. Must not import the code
that waits."""
