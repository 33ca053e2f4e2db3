"""A digest of JSON data that does not depend on how the data is formatted."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(body: Any) -> str:
    """Return the sha256 of `body` as canonical JSON: keys sorted, no spaces."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
