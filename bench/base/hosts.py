"""The host in an HTTP request's `Host` header."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::\d{0,5})?", re.ASCII)


def named(header: str) -> str | None:
    """Return the name or address in a `Host` header, in lower case, without port, brackets and final dot; None if it is
    not valid."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    if match["v6"] is None:
        return match["name"].lower().removesuffix(".") or None
    try:
        return str(ipaddress.IPv6Address(match["v6"]))
    except ValueError:
        return None
