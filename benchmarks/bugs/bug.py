"""`Bug`: one defect, and `Family`: how a file of defects lists them. Tools for patches; nothing of the engine is imported.

A patch is a function of the module that it breaks, called once that is imported. What ranks are is in the name of their
process.
"""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Module = Any
Patch = Callable[[Module], None]
MODELS = ("mlp", "lenet", "resnet_graph")
EVERY = ("solo", "nccl_sync", "nccl_cadence", "cpu_async")
"""The models and modes of `conf/experiment/ci.yaml`."""
RANKS, AVERAGED, SYNC, CADENCE, ASYNC = EVERY[1:], EVERY[2:], EVERY[1:2], EVERY[2:3], EVERY[3:]
ANY = "any"
FAMILIES = ("data", "order", "forward", "gradient", "optimizer", "schedule", "average", "evaluation", "record")


@dataclass(frozen=True)
class Bug:
    """One defect."""

    breaks: str
    """In words."""
    family: str
    """One of `FAMILIES`; `unseen` if it was written by somebody who had not read the checks."""
    source: str
    """Where the kind comes from: an id of the list of historical defects, `issue` for one that an earlier trial let pass, or
    `own`."""
    check: str
    """The check that must fail, `ANY` for whichever does; `readable`: the record does not prove the result."""
    modes: tuple[str, ...]
    """Of the `ci` experiment that it touches; the first is trained where one cell is to do."""
    patches: Mapping[str, Patch]
    """Module -> what breaks it."""
    models: tuple[str, ...] = MODELS
    times: int = 1
    """How often a cell is trained with the same seed."""
    seeds: tuple[int, ...] = (0,)
    settings: tuple[str, ...] = ()
    """Of the run, beside those of the `ci` experiment."""
    resumed: tuple[tuple[str, ...], ...] = ()
    """It stops the run, which is gone on with as often, with these settings."""

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Return (model, mode) of all cells that it touches, the first alone first."""
        return [(model, mode) for model in self.models for mode in self.modes]


@dataclass(frozen=True)
class Family:
    """A file's bugs, by name."""

    name: str
    bugs: dict[str, Bug] = field(default_factory=dict)

    def bug(
        self, module: str, check: str, modes: Sequence[str], breaks: str, source: str = "own", **more: Any
    ) -> Callable[[Patch], Patch]:
        """Enter the patch that follows, under its name. `more`: other fields of `Bug`."""

        def enter(patch: Patch) -> Patch:
            name = patch.__name__
            assert name not in self.bugs, name
            self.bugs[name] = Bug(breaks, self.name, source, check, tuple(modes), {module: patch}, **more)
            return patch

        return enter


def rank() -> int:
    """Return the rank of this process, or thread; 0 for one that is none."""
    return next((int(number) for name, _, number in _names() if name == "rank"), 0)


def _names() -> list[tuple[str, str, str]]:
    names = multiprocessing.current_process().name, threading.current_thread().name
    return [name.partition("-") for name in names]


def last() -> bool:
    """Whether this process is the last rank of two, or the one process of a run on one."""
    return rank() == 1 or all(name != "rank" for name, _, _ in _names())


def wrap(owner: Any, name: str, broken: Callable[..., Any]) -> None:
    """Put `broken(original, self, *arguments)` in place of a method; `original` is bound."""
    original = getattr(owner, name)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return broken(functools.partial(original, self), self, *arguments, **named)

    setattr(owner, name, method)


def after_init(owner: Any, change: Callable[[Any], None]) -> None:
    """Have `change` done to every object of a class once it is made."""

    def broken(make: Any, self: Any, *made_of: Any, **named: Any) -> None:
        make(*made_of, **named)
        change(self)

    wrap(owner, "__init__", broken)


def in_place_of(name: str) -> Callable[[Callable[..., Any]], Patch]:
    """Make a patch of a function that stands in for a method, `Class.method`, or function of the module. It is called
    with the original, bound if it is a method, and then as that would be."""

    def patch_with(broken: Callable[..., Any]) -> Patch:
        @functools.wraps(broken)
        def patch(module: Module) -> None:
            owner, _, method = name.partition(".")
            if method:
                wrap(getattr(module, owner), method, broken)
            else:
                original = getattr(module, name)
                setattr(module, name, functools.update_wrapper(functools.partial(broken, original), original))

        return patch

    return patch_with


def once_made(name: str) -> Callable[[Callable[[Any], None]], Patch]:
    """Make a patch of a function that changes every object of a class of the module, once it is made."""

    def patch_with(change: Callable[[Any], None]) -> Patch:
        @functools.wraps(change)
        def patch(module: Module) -> None:
            after_init(getattr(module, name), change)

        return patch

    return patch_with


def counted(self: Any, name: str) -> int:
    """Return how often this was asked before, for an object and a purpose."""
    counts = vars(self).setdefault("_bug_counts", {})
    counts[name] = counts.get(name, 0) + 1
    return int(counts[name]) - 1
