"""Decide who takes part: joins, silence, losses, restarts, and from which state the others continue. Must not know
policies."""
