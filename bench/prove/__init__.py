"""Proves a mode: a few steps of real ranks against plain PyTorch on one device, step by step, and says which differences are
expected and why. Trains no run, judges no folder."""
