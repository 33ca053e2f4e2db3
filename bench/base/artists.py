"""Spares matplotlib the docstrings of its artists, which take a quarter of the time to import it.

It composes them while it defines the artists: imported after `matplotlib.figure`, this module changes nothing.
"""

from __future__ import annotations

import matplotlib.artist


def _no_properties(artist: object) -> str:
    """Return no list of properties for the docstring of `artist`."""
    return ""


matplotlib.artist.kwdoc = _no_properties
