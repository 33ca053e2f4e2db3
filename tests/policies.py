"""Policies as tests ask for them: by name, with the settings that they have of those that are offered."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

from ddp.core.policies import POLICIES


def accepted(name: str, **settings: Any) -> dict[str, Any]:
    """Those of the `settings` that the policy has."""
    return {key: value for key, value in settings.items() if key in _settings_of(name)}


@lru_cache
def _settings_of(name: str) -> frozenset[str]:
    return frozenset(inspect.signature(POLICIES[name]).parameters)
