"""Decide which ranks or links are slow, and which replicas differ, from what ranks report. Must not order anything."""
