"""Ranks of other hosts: connections, rendezvous, runs."""
