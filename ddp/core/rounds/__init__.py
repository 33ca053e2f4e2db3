"""Decide when a round begins, what each of its phases does and when it closes. Must not know policies."""
