"""Where an exception comes from: what two ranks must have in common for their errors to be one error of the program."""

from __future__ import annotations

import sysconfig
from itertools import chain
from pathlib import Path
from traceback import walk_tb
from types import CodeType

_LIBRARIES = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = f"{Path(__file__).parents[1]}/"


def origin(error: BaseException) -> str:
    """Return the type of `error` and the innermost line of code that is neither a library's nor the engine's; if there is
    none, the innermost line. What the message says does not count: it may speak of numbers."""
    chained = [error]
    while (cause := chained[-1].__cause__) is not None and cause not in chained:
        chained.append(cause)
    frames = [
        (frame.f_code, line) for frame, line in chain.from_iterable(walk_tb(one.__traceback__) for one in chained)
    ]
    own = [place for place in frames if _users(place[0])]
    where = (own or frames)[-1:]
    said = "".join(f" in {code.co_name} ({code.co_filename}:{line})" for code, line in where)
    return f"{type(error).__qualname__}{said}"


def _users(code: CodeType) -> bool:
    name = code.co_filename
    return not name.startswith((_OURS, "<frozen ")) and (
        "/site-packages/" not in name and not name.startswith(_LIBRARIES)
    )
