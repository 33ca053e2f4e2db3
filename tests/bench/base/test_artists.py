"""What is left out of matplotlib while it is imported, and only then."""

from __future__ import annotations

import matplotlib.artist
from matplotlib.lines import Line2D

import bench.base.style  # noqa: F401  what is tested happens at its import


def test_matplotlib_describes_the_artists_of_others() -> None:
    assert "linewidth" in matplotlib.artist.kwdoc(Line2D)
