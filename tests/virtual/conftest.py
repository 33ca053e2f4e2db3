"""Runs of a job in a private folder, as tests with real processes have them."""

from tests.runtime.conftest import nothing_left_behind, play

__all__ = ["nothing_left_behind", "play"]
