"""Defines `Monitor`, a live page, and `Timeline`, a recording, for runs of `Trainer`, of graphs and of your own loops.

Owns the records of such runs and their creation from `Monitor.log`. Must not know pages, pictures and servers: these are in
the harness, which `harness` imports by name when something is shown.
"""

from ddp.monitor.monitor import Monitor
from ddp.monitor.timeline import Timeline

__all__ = ["Monitor", "Timeline"]
