"""Closed forms that replays are held against. One unit of time throughout."""

from __future__ import annotations

import math


def daly(save: float, failure: float) -> float:
    """Return the time of training between checkpoints that loses least, where writing one takes `save` and failures come
    `failure` apart in the mean (Daly 2006, first order; Young 1974 but for the last term)."""
    return math.sqrt(2 * save * failure) - save if save < failure / 2 else failure


def expected_ettr(failure: float, restart: float, interval: float, save: float) -> float:
    """Return the expected effective training time ratio of a job that restarts from checkpoints: (1 - (restart +
    interval / 2) / failure) / (1 + save / interval) (Kokolis et al., HPCA 2025), at least 0. Holds for small losses."""
    return max((1 - (restart + interval / 2) / failure) / (1 + save / interval), 0.0)
