"""One digest of what JSON can hold, whatever way it is written."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(body: Any) -> str:
    """Return the sha256 of `body` as canonical JSON: keys sorted, no spaces."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
