"""Names and addresses of hosts: the `Host` of a request, and the interfaces of this one."""

from __future__ import annotations

import ipaddress
import re
import socket

import psutil

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::\d{0,5})?", re.ASCII)


def named(header: str) -> str | None:
    """Return the name or address that a `Host` gives, in lower case, without port, brackets and the final dot; None for
    what is no host at all."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    if match["v6"] is None:
        return match["name"].lower().removesuffix(".") or None
    try:
        return str(ipaddress.IPv6Address(match["v6"]))
    except ValueError:
        return None


def on_loopback(place: str) -> bool:
    """Tell whether HOST:PORT is on loopback."""
    try:
        infos = socket.getaddrinfo(place.rpartition(":")[0].strip("[]"), None)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(where[0])).is_loopback for *_, where in infos)


def address_towards(address: tuple[str, int]) -> str:
    """Return the address of this host from which that one is reached. Raise OSError."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(bind: str) -> tuple[str, str]:
    """Return (address, interface) of this host, by an address, an interface's name, or its network. Raise ValueError."""
    here = [
        (name, ipaddress.ip_address(entry.address))
        for name, addresses in psutil.net_if_addrs().items()
        for entry in addresses
        if entry.family in (socket.AF_INET, socket.AF_INET6) and "%" not in entry.address
    ]
    try:
        network = ipaddress.ip_network(bind, strict=False)
    except ValueError:
        fitting = sorted((int(address.version), str(address), name) for name, address in here if name == bind)
    else:
        fitting = [(0, str(address), name) for name, address in here if address in network]
    if not fitting:
        there = ", ".join(f"{address} ({name})" for name, address in here)
        raise ValueError(
            f"cluster.bind={bind} is no address, network or interface of the host of rank 0, which has {there}; with "
            "several hosts give their network, as any of them may get rank 0"
        )
    return fitting[0][1:]
