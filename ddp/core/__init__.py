"""Decisions as pure functions: standard library only, no clock, no randomness, no files, no threads (enforced by lint
rules).

Time, randomness and failures come in as events; commands go out."""
