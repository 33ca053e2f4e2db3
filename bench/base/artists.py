"""Imports matplotlib's artists without their docstrings, which take a quarter of the time to import it.

Matplotlib composes them while it defines the artists: where `matplotlib.figure` was imported before, this changes
nothing.
"""

from __future__ import annotations

from importlib import import_module

import matplotlib.artist


def _no_properties(artist: object) -> str:
    """Return no list of properties for the docstring of `artist`."""
    return ""


_kwdoc = matplotlib.artist.kwdoc
matplotlib.artist.kwdoc = _no_properties
try:
    import_module("matplotlib.figure")
finally:  # others' artists have docstrings
    matplotlib.artist.kwdoc = _kwdoc
