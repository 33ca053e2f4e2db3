"""Ranks that are lost, come back or become slow."""
