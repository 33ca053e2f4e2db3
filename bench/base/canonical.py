"""A digest of JSON data that does not depend on how the data is formatted."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any


def digest(body: Any) -> str:
    """Return the sha256 of `body` as canonical JSON: keys sorted, no spaces."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of a JSON text, as its `object_pairs_hook`. Raises ValueError if a key occurs twice: a person may
    read one value, and the program the other."""
    body = dict(pairs)
    if len(body) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{name!r} is said twice")
    return body
