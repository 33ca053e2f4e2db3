"""Mutual authentication: the two ends of a new connection prove that they have the same key, without revealing it.

    coordinator -> rank    magic, nonce
    rank -> coordinator    magic, nonce, HMAC(key, "rank" + run + both nonces)
    coordinator -> rank    HMAC(key, "coordinator" + run + both nonces)

Both nonces are fresh, so a recorded handshake is useless later. The keys of the following frames are derived from both.
Every message has a fixed length, and the whole handshake has one deadline.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import select
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from ddp.remote.wire import Keys, LinkLost, Silent, Wire

MAGIC = b"elche-machines/1"
NONCE = PROOF = 32
PATIENCE_S = 5.0
"""Timeout of the handshake, in seconds."""
LEAST_KEY = 16
KEY, KEY_FILE = "DDP_KEY", "DDP_KEY_FILE"


class NoProof(LinkLost):
    """The other end does not have the key."""


def shared_key(environ: Mapping[str, str]) -> bytes | None:
    """Return the secret shared by the hosts of a run, from a file or the environment; None if neither is set. Raises
    ValueError."""
    if name := environ.get(KEY_FILE):
        path = Path(name)
        try:
            mode = path.stat().st_mode
            key = path.read_bytes().strip() if stat.S_ISREG(mode) else b""
        except OSError as error:
            raise ValueError(f"{KEY_FILE}={name}: {error.strerror}") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"{KEY_FILE}={name} can be read by others: chmod 600 {name}")
    else:
        key = os.fsencode(environ.get(KEY, ""))
    if not key and not name:
        return None
    if len(key) < LEAST_KEY:
        source = KEY_FILE if name else KEY
        raise ValueError(f"{source} holds {len(key)} bytes, {LEAST_KEY} are the least: openssl rand -hex 32")
    return key


def welcome(line: socket.socket, key: bytes, run: bytes) -> Wire:
    """Carry out the coordinator's side of the handshake. On LinkLost, the caller closes the connection. Raise NoProof
    if the other side does not have the key."""
    until = time.monotonic() + PATIENCE_S
    ours = secrets.token_bytes(NONCE)
    _send(line, MAGIC + ours, until)
    answer = _receive(line, len(MAGIC) + NONCE + PROOF, until)
    theirs, proof = answer[len(MAGIC) : -PROOF], answer[-PROOF:]
    transcript = run + ours + theirs
    if not answer.startswith(MAGIC) or not hmac.compare_digest(proof, _digest(key, b"rank", transcript)):
        raise NoProof("it does not have the key")
    _send(line, _digest(key, b"coordinator", transcript), until)
    return Wire(line, Keys(_digest(key, b"down", transcript), _digest(key, b"up", transcript)), PATIENCE_S)


def introduce(line: socket.socket, key: bytes, run: bytes) -> Wire:
    """Carry out a rank's side of the handshake. Raises LinkLost, NoProof; Silent, if another attempt may succeed."""
    until = time.monotonic() + PATIENCE_S
    greeting = _receive(line, len(MAGIC) + NONCE, until)
    if not greeting.startswith(MAGIC):
        raise NoProof("it is no coordinator of this version")
    ours = secrets.token_bytes(NONCE)
    transcript = run + greeting[len(MAGIC) :] + ours
    _send(line, MAGIC + ours + _digest(key, b"rank", transcript), until)
    try:
        proof = _receive(line, PROOF, until)
    except Silent:
        raise
    except LinkLost as error:  # the coordinator hangs up if it rejects our proof
        why = f"is {KEY_FILE} or {KEY} the same on all hosts? ({error})"
        raise NoProof(f"it hung up in the handshake: {why}") from error
    if not hmac.compare_digest(proof, _digest(key, b"coordinator", transcript)):
        raise NoProof("it does not have the key")
    return Wire(line, Keys(_digest(key, b"up", transcript), _digest(key, b"down", transcript)), PATIENCE_S)


def _digest(key: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, role + b":" + transcript, hashlib.sha256)


def _send(line: socket.socket, data: bytes, until: float) -> None:
    try:
        line.settimeout(max(until - time.monotonic(), 1e-3))
        line.sendall(data)
    except OSError as error:
        raise LinkLost(error.strerror or str(error)) from error


def _receive(line: socket.socket, size: int, until: float) -> bytes:
    """Receive exactly `size` bytes until the deadline `until`, however slowly they arrive. Raises LinkLost."""
    data = bytearray()
    line.setblocking(False)
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while len(data) < size:
        left = until - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise Silent(f"its handshake took over {PATIENCE_S:g} s")
        try:
            more = line.recv(size - len(data))
        except BlockingIOError:
            continue
        except OSError as error:
            raise LinkLost(error.strerror or str(error)) from error
        if not more:
            raise LinkLost("it hung up")
        data += more
    return bytes(data)
