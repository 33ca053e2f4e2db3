"""The hash chain of `events.jsonl`: every line ends with a digest of itself and of the line before it.

    {"n":17,"type":"Progress", ... ,"d":"3fa9c1d2"}

`d` is the beginning of sha256(`d` of the line before + this line up to `,"d"`). If a line is changed, removed, added or
moved, a line at that place does not match its predecessor, and all others still do. `metrics.json` has the sha256 of
the whole file, which binds all lines. Knows no kind of record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from bench.base.number_format import plural
from bench.results.runfolder import METRICS
from ddp import regular_files

START = b"0" * 8
"""Stands in for the digest of the line before the first one."""
_OPEN, _CLOSE = b',"d":"', b'"}'
_SUFFIX = len(_OPEN) + len(START) + len(_CLOSE)
_DIGEST = slice(len(_OPEN) - _SUFFIX, -len(_CLOSE))
"""Position of the digest in a line."""


class Seal(NamedTuple):
    """Binds a file of records as a whole."""

    lines: int
    sha256: str


def linked(line: bytes, before: bytes) -> bytes:
    """Return the line, a JSON object without newline, with its digest. `before`: the digest of the line before it."""
    body = line[:-1]
    return body + _link(before, body)


def digest_of(line: bytes) -> bytes:
    """Return the digest in a line (without newline); empty: it has none."""
    if line[-_SUFFIX : len(_OPEN) - _SUFFIX] != _OPEN or line[-len(_CLOSE) :] != _CLOSE:
        return b""
    return line[_DIGEST]


def unlinked(line: bytes) -> bytes:
    """Return the line (without newline) without its digest."""
    return b"%b}" % line[:-_SUFFIX] if digest_of(line) else line


def chained(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file (without newlines), each with its digest."""
    before, size = START, len(START)
    for line in lines:  # same as `linked`, but without two function calls per line
        body = line[:-1]
        before = sha256(before + body).hexdigest()[:size].encode()
        yield body + _OPEN + before + _CLOSE


def follows(line: bytes, before: bytes) -> bool:
    """Return whether the digest of a line (without newline) matches its content and the line before it."""
    return line[-_SUFFIX:] == _link(before, line[:-_SUFFIX])


def _link(before: bytes, body: bytes) -> bytes:
    """Return the end of a line: the field with its digest."""
    return b"%b%b%b" % (_OPEN, sha256(before + body).hexdigest()[: len(START)].encode(), _CLOSE)


def lines(path: Path, seal: Seal | None = None, *, torn: bool = False) -> Iterator[bytes]:
    """Yield the lines of a file of records without newlines. Each is checked against its predecessor, and at the end
    the whole file against `seal`. A file of an earlier version, whose first line has no digest, is not checked if there
    is no seal.

    `torn`: skip a last line that a killed process left unfinished. Raises OSError; ValueError that names the line.
    """
    for some in batches(path, seal, torn=torn):
        yield from some


def batches(path: Path, seal: Seal | None = None, *, torn: bool = False) -> Iterator[list[bytes]]:
    """Yield the lines as `lines` does, several at a time. Raise ValueError for a line that was changed."""
    before, total, count, sealed = START, sha256(), 0, seal is not None
    for block in regular_files.blocks(path):
        some = block.split(b"\n")
        rest = some.pop()
        if rest and not torn:
            some.append(rest)
        if not some:
            break
        if not count:
            sealed = sealed or bool(digest_of(some[0]))
        if sealed:
            total.update(block)
            sound = _following(some, before)
        else:
            sound = next((place for place, line in enumerate(some) if digest_of(line)), len(some))
        if sound == len(some):
            before, count = some[-1][_DIGEST], count + sound
            yield some
            continue
        yield some[:sound]
        if not sealed:
            raise ValueError(f"{path}:1: was added or changed: it has no digest, and line {count + sound + 1} has one")
        before = some[sound - 1][_DIGEST] if sound else before
        raise ValueError(f"{path}:{count + sound + 1}: {_culprit(path, count + sound + 1, before, seal)}")
    if seal is not None:
        _check_end(path, Seal(count, total.hexdigest()), seal)


def _following(some: Sequence[bytes], before: bytes) -> int:
    """Return how many of the first lines match their predecessors."""
    last, size = -_SUFFIX, len(START)
    for place, line in enumerate(some):  # same as `follows`, but without two function calls per line
        before = sha256(before + line[:last]).hexdigest()[:size].encode()
        if line[last:] != _OPEN + before + _CLOSE:
            return place
    return len(some)


def seal_of(path: Path) -> Seal:
    """Return the seal of a file of records as it is now. Raises OSError."""
    every = list(regular_files.lines(path))
    return Seal(len(every), sha256(b"".join(every)).hexdigest())


def is_chained(path: Path) -> bool:
    """Return whether the first line of a file of records has a digest. Raises OSError."""
    return bool(digest_of(next(regular_files.lines(path), b"").rstrip(b"\n")))


def _check_end(path: Path, actual: Seal, seal: Seal) -> None:
    if actual.lines < seal.lines:
        raise ValueError(
            f"{path}:{actual.lines}: ends here, of {plural(seal.lines, 'line')}: the last ones are missing"
        )
    if actual.lines > seal.lines:
        raise ValueError(f"{path}:{seal.lines + 1}: was added: the record has {plural(seal.lines, 'line')}")
    if actual.sha256 != seal.sha256:
        both = f"sha256 is {actual.sha256[:16]}, and {seal.sha256[:16]} in {METRICS} (record.sha256)"
        raise ValueError(f"{path}: {both}: one of them was changed")


def _culprit(path: Path, number: int, before: bytes, seal: Seal | None) -> str:
    """Say what happened to line `number`, the first that does not match its predecessor."""
    every = [line.rstrip(b"\n") for line in regular_files.lines(path)]
    return _change(every[number - 1 :], before, None if seal is None else len(every) - seal.lines)


def _change(rest: Sequence[bytes], before: bytes, more: int | None) -> str:
    """Say what happened to the first line of `rest`. `more`: number of surplus lines in the file; None: not known."""
    own = next((place for place, line in enumerate(rest) if follows(line, before)), None)
    if own is not None:
        more_lines = f"and the next {own - 1} were" if own > 1 else "was"
        return f"{more_lines} added or moved here: the line that belongs here comes after"
    if more is not None and more < 0:
        verb = "is" if more == -1 else "are"
        return f"does not follow the line before it: {plural(-more, 'line')} of the record {verb} missing"
    return "was changed" if more == 0 else "was changed, or lines before it are missing"
