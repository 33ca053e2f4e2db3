"""`Registry`: members by name, ours and those that installed packages add by entry points. Imports nothing of ours.

Owns when the packages are looked at: once in a process, when somebody first looks at a registry. What is wrong with a member
of a package stays in `broken`, so that all other members can be used; `ddp.registries` says it in a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

GROUP = "elche_bench."
"""What the groups of entry points begin with: `elche_bench.models` and so on."""
Member = TypeVar("Member")


def loaded(like: type | None = None) -> Callable[[EntryPoint], Any]:
    """Return what imports a member at once, and raises TypeError where it is no `like`; None: a class or function."""

    def load(entry: EntryPoint) -> Any:
        value = entry.load()
        if not (callable(value) if like is None else isinstance(value, like)):
            kind = "class or function" if like is None else like.__name__
            raise TypeError(f"{entry.value} must be a {kind}, and is a {type(value).__name__}")
        return value

    return load


class Registry(MutableMapping[str, Member], Generic[Member]):
    """Name -> member. Those of packages come after our own, and take no name of ours."""

    def __init__(self, kind: str, members: Mapping[str, Member], read: Callable[[EntryPoint], Member]) -> None:
        self.kind = kind
        """The group of entry points, after `GROUP`."""
        self._members, self._read = dict(members), read
        self._ours = frozenset(members)
        self._complete = False
        self.broken: dict[str, tuple[str, Exception]] = {}
        """Name -> where a package says that the member is, and what was raised."""

    def is_ours(self, name: str) -> bool:
        """Return whether `name` is a member that the project itself has."""
        return name in self._ours

    def enrol(self, name: str, member: Member, source: str) -> None:
        """Add a user's own. Raises ValueError where another member has the name."""
        if self.get(name, member) != member:
            raise ValueError(f"{source}: among the {self.kind} there is another {name}; rename this one")
        self._all()[name] = member

    def _all(self) -> dict[str, Member]:
        if not self._complete:
            self._complete = True
            for entry in entry_points(group=GROUP + self.kind):
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
        """Look at the packages now; return this registry."""
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
