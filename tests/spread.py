"""Combinations of what tests are tried with, which prove much the same: a part of them here, all in `make conformance`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import product
from typing import Any

from tests.slow import diagonal

ASKED = os.environ.get("CONFORMANCE", "").split(",")
WHOLE = "all" in ASKED


def spread(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return each value of each axis, with those of the others in turn; all combinations in `make conformance`."""
    return list(product(*axes)) if WHOLE else diagonal(*axes)
