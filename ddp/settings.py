"""Names and settings that a user gives, checked: what is wrong is one line that names the remedy. Imports no torch."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from ddp.core.policies import POLICIES, Policy
from ddp.suggest import unknown


def known(kind: str, name: str, registry: Collection[str]) -> str:
    """`name` if it is in the registry of all `kind`; else ValueError with the nearest one."""
    if name not in registry:
        raise ValueError(unknown(kind, str(name), registry))
    return name


def make_policy(name: str, settings: dict[str, Any]) -> Policy:
    """The policy `name` with these settings, the others as documented. ValueError for an unknown one or a bad value."""
    policy = POLICIES[known("policy", name, POLICIES)]
    names = inspect.signature(policy).parameters
    for key in settings.keys() - names.keys():
        raise ValueError(unknown(f"setting of policy {name!r}:", key, names))
    try:
        return policy(**settings)
    except (ValueError, TypeError) as error:
        raise ValueError(f"policy={name}: {error}") from None
