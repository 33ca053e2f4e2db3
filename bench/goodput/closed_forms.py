"""Closed forms to compare replays with. All times have one unit."""

from __future__ import annotations

import math


def daly(save: float, failure: float) -> float:
    """Return the training time between checkpoints that loses least; `save`: time to write one, `failure`: mean time
    between failures (Daly 2006, first order; Young 1974 without the last term)."""
    return math.sqrt(2 * save * failure) - save if save < failure / 2 else failure


def expected_ettr(failure: float, restart: float, interval: float, save: float) -> float:
    """Return the expected effective training time ratio of a job that restarts from checkpoints, at least 0.

    It is (1 - (restart + interval / 2) / failure) / (1 + save / interval) (Kokolis et al., HPCA 2025), valid for small
    losses.
    """
    return max((1 - (restart + interval / 2) / failure) / (1 + save / interval), 0.0)
