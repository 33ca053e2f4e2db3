"""Defines `Registry`: members by name, the project's own and those of installed packages, which add theirs by entry points.
Imports nothing of the project.

Owns when entry points are read: once in a process, at the first lookup that needs them. A broken member of a package goes
to `broken`, so all other members can be used; `ddp.registries` reports it in one line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

GROUP = "elche_bench."
"""Prefix of the groups of entry points: `elche_bench.models` and so on."""
Member = TypeVar("Member")


@lru_cache(maxsize=1)
def _installed(search_path: tuple[str, ...]) -> Any:
    """Return the entry points of the packages installed on `sys.path`; all groups, as each package is a file to read."""
    return entry_points()


def extended() -> bool:
    """Return whether an installed package adds members to any registry."""
    return any(group.startswith(GROUP) for group in _installed(tuple(sys.path)).groups)


def loaded(like: type | None = None) -> Callable[[EntryPoint], Any]:
    """Return a function that imports the member of an entry point, and raises TypeError if it is no instance of `like`
    (None: no class or function)."""

    def load(entry: EntryPoint) -> Any:
        value = entry.load()
        if not (callable(value) if like is None else isinstance(value, like)):
            kind = "class or function" if like is None else like.__name__
            raise TypeError(f"{entry.value} must be a {kind}, and is a {type(value).__name__}")
        return value

    return load


class Registry(MutableMapping[str, Member], Generic[Member]):
    """Name -> member. Members of packages come after the project's own, and cannot replace them."""

    def __init__(self, kind: str, members: Mapping[str, Member], read: Callable[[EntryPoint], Member]) -> None:
        self.kind = kind
        """Group of the entry points, without the prefix `GROUP`."""
        self._members, self._read = dict(members), read
        self._ours = frozenset(members)
        self._complete = False
        self.broken: dict[str, tuple[str, Exception]] = {}
        """Name -> (value of the entry point, error that loading it raised)."""
        self.absent: dict[str, str] = {}
        """Name of a member that is left out -> extra that it needs and that is not installed."""

    def is_ours(self, name: str) -> bool:
        """Return whether `name` is one of the project's own members."""
        return name in self._ours

    def enrol(self, name: str, member: Member, source: str) -> None:
        """Add a member of the user's own. Raises ValueError if another member has the name."""
        if self.get(name, member) != member:
            raise ValueError(f"{source}: among the {self.kind} there is another {name}; rename this one")
        self._all()[name] = member

    def _all(self) -> dict[str, Member]:
        if not self._complete:
            self._complete = True
            for entry in _installed(tuple(sys.path)).select(group=GROUP + self.kind):
                self._enter(entry)
        return self._members

    def _enter(self, entry: EntryPoint) -> None:
        try:
            if entry.name in self._members:
                raise ValueError(f"the name {entry.name} is taken; give the entry point another one")
            self._members[entry.name] = self._read(entry)
        except (Exception, SystemExit) as error:
            problem = error if isinstance(error, Exception) else RuntimeError("SystemExit")
            name = entry.name if entry.name not in self._members else f"{entry.name} ({entry.value})"
            self.broken[name] = (entry.value, problem)

    def complete(self) -> Registry[Member]:
        """Read the entry points of installed packages now; return this registry."""
        self._all()
        return self

    def __getitem__(self, name: str) -> Member:
        return self._members[name] if name in self._ours and name in self._members else self._all()[name]

    def __setitem__(self, name: str, member: Member) -> None:
        self._all()[name] = member

    def __delitem__(self, name: str) -> None:
        del self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
