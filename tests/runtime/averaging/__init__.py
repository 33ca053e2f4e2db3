"""Averages of replicas and of gradients, in real processes and on ranks of this one."""
