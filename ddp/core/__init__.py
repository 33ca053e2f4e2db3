"""Decisions, pure: standard library only, no clock, no randomness, no files, no threads (lint and import rules hold it).

Time, randomness and failure come in from outside as events; commands go out.
"""
