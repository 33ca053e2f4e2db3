"""The default secret of a run's processes on one host, and messages sealed with a secret in places where anyone can write.

All ranks of a host belong to one user. A file that only this user can read therefore authenticates them, and no secret is
sent.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddp.core.errors import ProtocolError
from ddp.process.scratch import places

KEY_BYTES = 32


def own_key() -> bytes:
    """Return this user's key on this host, and create it at the first call. Raises OSError; ValueError if other users can
    access its file."""
    memory, disk = places()
    folders = (memory, disk) if os.access(memory, os.W_OK) else (disk,)
    paths = [folder / f"ddp-key-{os.getuid()}" for folder in folders]
    for path in paths:
        with suppress(FileNotFoundError):
            return _read(path)
    try:
        return _created(paths[0])
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or len(paths) == 1:
            raise
    return _created(paths[1])


def _created(path: Path) -> bytes:
    """Create the key, unless another rank does so first; return it. Raises OSError, ValueError."""
    made = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(made, path)
    finally:
        made.unlink(missing_ok=True)
    return _read(path)


def _read(path: Path) -> bytes:
    try:
        file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; remove it, or name another key in DDP_KEY_FILE") from error
    with file:
        about = os.fstat(file.fileno())
        key = file.read(KEY_BYTES + 1) if stat.S_ISREG(about.st_mode) else b""
    private = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if not private or len(key) != KEY_BYTES:
        raise ValueError(f"{path} is not this user's key alone: remove it, or name another one in DDP_KEY_FILE")
    return key


def seal(content: dict[str, Any], key: bytes, about: str) -> str:
    """Write a message for holders of the key. `about`: its purpose; it is rejected for another purpose."""
    body = json.dumps(content)
    return json.dumps({"said": body, "tag": _tag(body, key, about)})


def opened(text: str | bytes, key: bytes, about: str) -> dict[str, Any]:
    """Return the sealed message. Raises ProtocolError if it was not sealed with this key and for this purpose."""
    try:
        envelope = json.loads(text)
        body, tag = envelope["said"], envelope["tag"]
        if hmac.compare_digest(str(tag).encode(), _tag(str(body), key, about).encode()):
            content: dict[str, Any] = json.loads(body)
            return content
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ProtocolError("it was not written with this run's key")


def _tag(body: str, key: bytes, about: str) -> str:
    return hmac.digest(key, b"said:" + about.encode() + b"\0" + body.encode(), hashlib.sha256).hex()
