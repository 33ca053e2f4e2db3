"""Finds an address of rank 0's host: by its NodeAddr, then by its name, then by an interface in the same network.

`candidates` collects possible addresses in this order. `own_address` chooses the one that rank 0 listens on, `reachable`
the one that another rank connects to. Every wait has a limit, and a failure lists everything that was tried.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ddp.launcher.environment import Placement
from ddp.launcher.interfaces import Interface, interfaces, is_loopback

ASK_S = 5.0
"""Timeout in seconds of one query to the scheduler or the resolver."""
CONNECT_S = 3.0
"""Timeout in seconds of one connection."""
LOOK_S = 1.0
"""Seconds between two lookups of a name that has no address yet."""
LOOPBACK = "127.0.0.1"
REMEDY = "export MASTER_ADDR, the address of rank 0's host, on all of them"
_NODE_ADDR = re.compile(r"\bNodeAddr=(\S+)")


class Candidate(NamedTuple):
    """An address that may belong to rank 0's host."""

    address: str
    source: str
    """Origin of the address, for error messages."""


class Known(NamedTuple):
    """Everything known about rank 0's host."""

    candidates: tuple[Candidate, ...]
    tried: tuple[str, ...] = ()
    """Sources that gave no address, each with the reason."""
    unresolved: bool = False
    """Whether a name has no address yet: a pod may get its address after this process has started."""


class Unreachable(ValueError):
    """No address of rank 0's host works. The message lists what was tried."""


def node_addr(host: str) -> str:
    """Return SLURM's NodeAddr of a node. Raises OSError."""
    command = shutil.which("scontrol")
    if command is None:
        raise OSError("scontrol is not on the PATH")
    try:
        words = [command, "--oneliner", "show", "node", host]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"scontrol did not answer within {ASK_S:g} s") from error
    match = _NODE_ADDR.search(answer.stdout)
    if match is None:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        raise OSError(lines[-1] if lines else "scontrol does not tell")
    return match[1]


def resolve(name: str) -> list[str]:
    """Return the addresses of a name. Raises OSError, also after `ASK_S` seconds: a resolver without an answer may take
    minutes."""
    with suppress(ValueError):
        return [str(ipaddress.ip_address(name))]
    addresses: list[str] = []
    why: list[OSError] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            addresses.extend(dict.fromkeys(str(where[0]) for *_, where in answers))
        except (OSError, UnicodeError) as error:
            why.append(OSError(getattr(error, "strerror", None) or str(error)))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ASK_S)
    if why:
        raise why[0]
    if asking.is_alive():
        raise OSError(f"the resolver did not answer within {ASK_S:g} s")
    return addresses


def candidates(
    placement: Placement,
    environ: Mapping[str, str],
    ask: Callable[[str], str] = node_addr,
    look_up: Callable[[str], list[str]] = resolve,
) -> Known:
    """Collect addresses of rank 0's host. If `MASTER_ADDR` is set, only that counts; on a single host, it is loopback."""
    known: list[Candidate] = []
    tried: list[str] = []
    unresolved: list[str] = []

    def resolved(name: str, source: str) -> None:
        try:
            addresses = look_up(name)
        except OSError as error:
            tried.append(f"{source}: {error}")
            unresolved.append(name)
            return
        for address in addresses:
            if is_loopback(address) and placement.nodes > 1 and name != address:
                tried.append(f"{source}: {address} is loopback, which other hosts do not reach")
            else:
                known.append(Candidate(address, source if address == name else f"{source} ({address})"))

    if placement.address:
        resolved(placement.address, f"MASTER_ADDR={placement.address}")
        return Known(tuple(known), tuple(tried), bool(unresolved))
    if placement.nodes == 1:
        return Known((Candidate(LOOPBACK, "one host"),))
    if placement.hosts:
        host = placement.hosts[0]
        try:
            addr = ask(host)
        except OSError as error:
            tried.append(f"NodeAddr of {host}: {error}")
        else:
            resolved(addr, f"NodeAddr={addr} of {host}")
        resolved(host, f"the name {host}")
    launching = environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    if launching:  # srun's host: rank 0's in a batch script, else usually in the same network
        known.append(Candidate(launching, f"SLURM_LAUNCH_NODE_IPADDR={launching}"))
    return Known(tuple(dict.fromkeys(known)), tuple(tried), bool(unresolved))


def own_address(known: Known, here: Sequence[Interface] | None = None) -> str:
    """Return the address that this host, rank 0's, listens on: a candidate, or the address of an interface in a candidate's
    network. Raises Unreachable."""
    here = interfaces() if here is None else here
    own = {each.address for each in here}
    for candidate in known.candidates:
        if candidate.address in own or is_loopback(candidate.address):
            return candidate.address
    for candidate in known.candidates:
        for each in here:
            if not is_loopback(each.address) and _inside(candidate.address, each.network):
                return each.address
    notes = [f"{each.source}: is no address or network of this host" for each in known.candidates]
    have = ", ".join(f"{each.address} ({each.name})" for each in here)
    raise Unreachable(f"rank 0 does not know where to listen: {_told(known, notes)}; this host has {have}; {REMEDY}")


def awaited_address(look: Callable[[], Known], patience_s: float) -> str:
    """Return `own_address(look())`. While a name has no address, try again for `patience_s` seconds. Raises Unreachable."""
    until = time.monotonic() + patience_s
    while True:
        known = look()
        try:
            return own_address(known)
        except Unreachable:
            if not known.unresolved or time.monotonic() >= until:
                raise
        time.sleep(min(LOOK_S, patience_s))


def reachable(
    look: Callable[[], Known],
    port: int,
    patience_s: float,
    connect: Callable[[tuple[str, int], float], socket.socket] = socket.create_connection,
    here: Sequence[Interface] | None = None,
) -> str:
    """Return the first candidate of `look()` that accepts a connection. Candidates are tried repeatedly, as rank 0 may
    not listen yet; those in a network of this host come first among candidates of the same source. While a name has no
    address, `look` is called again. Raises Unreachable after `patience_s` seconds, or at once if there is nothing to
    try."""
    here = interfaces() if here is None else here
    known, looked, notes = look(), time.monotonic(), dict[str, str]()
    until = looked + patience_s
    while known.candidates or known.unresolved:
        for candidate in sorted(known.candidates, key=lambda each: (_rank(each, known), not _near(each.address, here))):
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                connect((candidate.address, port), min(left, CONNECT_S)).close()
            except OSError as error:
                notes[candidate.source] = f"{candidate.source}, port {port}: {error.strerror or error}"
            else:
                return candidate.address
        if time.monotonic() >= until:
            break
        time.sleep(min(0.2, max(until - time.monotonic(), 0.0)))
        if known.unresolved and time.monotonic() > looked + LOOK_S:
            known, looked = look(), time.monotonic()
    tries = _told(known, list(notes.values()))
    waited = f"not reached within {patience_s:g} s" if known.candidates or known.unresolved else "not to be found"
    raise Unreachable(f"rank 0's host is {waited}: {tries}; does rank 0 run? If so, {REMEDY}")


def _rank(candidate: Candidate, known: Known) -> int:
    """Return the position of the first candidate with the same source."""
    sources = [each.source.partition(" (")[0] for each in known.candidates]
    return sources.index(candidate.source.partition(" (")[0])


def _near(address: str, here: Sequence[Interface]) -> bool:
    return any(_inside(address, each.network) for each in here)


def _inside(address: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network)
    except ValueError:
        return False


def _told(known: Known, notes: Sequence[str]) -> str:
    """List what was tried, in one line."""
    return "; ".join([*known.tried, *notes]) or "the launcher names no host"
