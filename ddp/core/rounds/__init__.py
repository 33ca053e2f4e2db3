"""Decide when a round begins, which event may come in each of its phases, what is done then, and when
it closes. Must not know policies."""
