"""Utilisation of ranks that average every H steps over slow links: a functional form that is fitted to measurements.
Pure.

    utilisation = H / (H (1 + e) + (a / B) (1 + b / B) (1 - k H))

in units of a step. `e` is lost in every step, whatever the link; `a / B` is the time of sending at B Mbit/s; `b` makes
slow links worse than that; `k` is what a link gains while ranks compute (burst credit). All four parameters are
positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np
from scipy.optimize import least_squares

Cell = tuple[float, float]
"""(steps between two averages, Mbit/s)."""
LEAST = 0.01
"""Least fraction of the sending time that remains after burst credit."""
BEGIN = (5e4, 10.0, 0.08, 0.002)


@dataclass(frozen=True)
class UtilisationModel:
    """The four parameters of the form."""

    a: float
    b: float
    e: float
    k: float

    def at(self, steps: float, bandwidth: float) -> float:
        """Return the utilisation, from 0 to 1."""
        sending = self.a / bandwidth * (1 + self.b / bandwidth) * max(1 - self.k * steps, LEAST)
        return steps / (steps * (1 + self.e) + sending)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(astuple(self))


def fit(measured: Mapping[Cell, float]) -> UtilisationModel:
    """Return the model with the least squared errors of the logarithms. Raises ValueError for too few cells."""
    if len(measured) < len(BEGIN):
        raise ValueError(f"{len(measured)} cells are too few for {len(BEGIN)} parameters")

    def errors(logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
        model = UtilisationModel(*np.exp(logs).tolist())
        return [float(np.log(model.at(*cell) / value)) for cell, value in measured.items()]

    return UtilisationModel(*np.exp(least_squares(errors, np.log(BEGIN), max_nfev=10_000).x).tolist())
