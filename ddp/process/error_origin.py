"""Tells where an exception comes from, to decide whether the errors of two ranks are the same error of the program."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from traceback import walk_tb
from types import CodeType

_LIBRARIES = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = f"{Path(__file__).parents[1]}/"


def origin(error: BaseException) -> str:
    """Return the type of `error` and its innermost line of user code; if there is none, the innermost line of all. The
    message is not compared, as it may contain numbers."""
    chained = [error]
    while (cause := chained[-1].__cause__) is not None and cause not in chained:
        chained.append(cause)
    frames = [(frame.f_code, line) for link in chained for frame, line in walk_tb(link.__traceback__)]
    own = [place for place in frames if _users(place[0])]
    where = (own or frames)[-1:]
    return type(error).__qualname__ + "".join(f" in {code.co_name} ({code.co_filename}:{line})" for code, line in where)


def _users(code: CodeType) -> bool:
    name = code.co_filename
    return not name.startswith((_OURS, "<frozen ")) and (
        "/site-packages/" not in name and not name.startswith(_LIBRARIES)
    )
