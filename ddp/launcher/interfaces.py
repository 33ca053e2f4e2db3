"""Lists the network addresses of this host, and finds the one that leads to another host."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress
from typing import NamedTuple

import psutil

NAME = re.compile(r"(?=.*[A-Za-z])[^\s/]{1,15}")
"""Names of interfaces. Linux also allows names of digits, which a mistyped address would be."""


class Interface(NamedTuple):
    """One address of this host."""

    name: str
    address: str
    network: str
    """Network of the address, such as 10.0.0.0/24."""


def interfaces() -> list[Interface]:
    """Return the addresses of this host, without link-local ones."""
    return [
        Interface(name, entry.address, str(ipaddress.ip_network(f"{entry.address}/{_bits(entry.netmask)}", False)))
        for name, addresses in psutil.net_if_addrs().items()
        for entry in addresses
        if entry.family in (socket.AF_INET, socket.AF_INET6) and "%" not in entry.address
    ]


def _bits(mask: str | None) -> int | str:
    """Return the length of a network prefix, from a mask such as 255.255.255.0 or ffff:ffff::."""
    if mask is None or ":" not in mask:
        return mask or 32
    return bin(int(ipaddress.IPv6Address(mask.partition("/")[0]))).count("1")


def is_loopback(address: str) -> bool:
    """Return whether an address is on loopback; False for a name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def on_loopback(place: str) -> bool:
    """Return whether HOST:PORT is on loopback."""
    try:
        infos = socket.getaddrinfo(place.rpartition(":")[0].strip("[]"), None)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(where[0])).is_loopback for *_, where in infos)


def address_towards(address: tuple[str, int]) -> str:
    """Return the address that this host uses to reach `address`. Raises OSError."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def check_bind(bind: str) -> None:
    """Raise ValueError for text that can be no address, network or interface of any host."""
    with suppress(ValueError):
        ipaddress.ip_network(bind, strict=False)
        return
    if not NAME.fullmatch(bind):
        raise ValueError(
            f"cluster.bind={bind!r} is no address, network or interface: give one, such as 10.0.0.0/24 or eth0"
        )


def interface_of(bind: str) -> tuple[str, str]:
    """Return (address, interface) of this host for an address, the name of an interface, or a network. Raises
    ValueError."""
    here = [(each.name, ipaddress.ip_address(each.address)) for each in interfaces()]
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
