"""Proves a mode: compares a few steps of real ranks with plain PyTorch on one device, step by step, and says which
differences are expected and why. Trains no run, judges no folder."""
