"""The folder of a user's presets while Hydra is started without a command line; the Hydra plug-in `PresetFolder` reads
it."""

from __future__ import annotations

folder: str | None = None
