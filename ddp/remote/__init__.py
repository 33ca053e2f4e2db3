"""Ranks in processes that somebody else started, on this host or on others: torchrun, one process a rank.

The process of rank 0 is the harness with its coordinator (`rendezvous`). Every other process is a node agent (`agent`):
it forks its rank as the parent does, and stands between the rank's pipe and an authenticated connection to the
coordinator (`wire`, `handshake`). So ranks, backends and coordinator are the same as on one host. Where a node agent does
not see the run's scratch folder, the two ends keep it alike (`file_mirror`): the files that a message speaks of travel
ahead of it.
"""
