"""Hydra in this process, without what it does twice: of what a command without an engine computes, more than a third.

What it composes stays its own. Commands in processes of their own have all of Hydra.
"""

from __future__ import annotations

from typing import Any

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore


def lighten(patch: pytest.MonkeyPatch) -> None:
    """Have one store of what is registered, which Hydra copies whole for each composition and only reads; and have no
    composition whose `hydra.mode` alone is read, where nobody can have set that: an experiment, a word or a folder of the
    user's."""
    patch.setattr(ConfigStore, "__deepcopy__", lambda store, memo: store, raising=False)
    looked_up = Hydra.get_mode

    def get_mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        own = any(path.provider == "command-line" for path in hydra.config_loader.get_search_path().get_path())
        if own or any("hydra" in word or "experiment" in word for word in overrides):
            return looked_up(hydra, config_name, overrides)
        return None

    patch.setattr(Hydra, "get_mode", get_mode)
