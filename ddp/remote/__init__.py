"""Ranks in processes that a launcher has started, on this host or on others: for example torchrun, with one process for
each rank.

The process of rank 0 is the harness with its coordinator (`rendezvous`). Every other process is a node agent (`agent`): it
forks its rank as the parent does, and relays messages between the rank's pipe and an authenticated connection to the
coordinator (`wire`, `handshake`). So ranks, backends and coordinator are the same as on one host. If a node agent does not
see the run's scratch folder, both ends synchronise it (`file_mirror`): the files that a message refers to are sent before
it.
"""
