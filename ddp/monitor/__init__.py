"""`Monitor` and `Timeline`: a run seen while it lasts and after it, for `Trainer`, for graphs and for loops of one's own.

Owns the records of such runs and the way from what a loop says to records. Must not know pages, pictures and servers: those
are the harness's, which `harness` finds by name where something is to be shown.
"""

from ddp.monitor.monitor import Monitor
from ddp.monitor.timeline import Timeline

__all__ = ["Monitor", "Timeline"]
