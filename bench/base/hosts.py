"""The `Host` of a request, taken apart as HTTP writes it: a name or address, and a port."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::\d{0,5})?", re.ASCII)


def named(header: str) -> str | None:
    """Return the name or address that a `Host` gives, in lower case, without port, brackets and the final dot; None for
    what is no host at all."""
    found = _HOST.fullmatch(header)
    if found is None:
        return None
    if found["v6"] is None:
        return found["name"].lower().removesuffix(".") or None
    try:
        return str(ipaddress.IPv6Address(found["v6"]))
    except ValueError:
        return None
