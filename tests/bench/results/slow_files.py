"""A file system that several hosts share and that shows them what it likes of the last minute, in virtual time.

What a host does happens at once, and it sees that itself; what others did it sees as late as `LATE_S`, and not in its order.
A folder is never renamed over another one. Hosts take turns at every call: who is next, how old a view is, who dies: all
that is drawn.
"""

from __future__ import annotations

import errno
import fnmatch
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

LATE_S = 60.0
"""As long clients of NFS may show attributes and folders as they were."""


class Node(NamedTuple):
    """A file or a folder."""

    mtime: float
    text: str | None = None
    """None: a folder."""


Tree = Mapping[str, Node]


class Dead(BaseException):
    """The host goes; nothing that its program still wants to do is done."""


class Host:
    """One host, whose program runs in a thread, a call of the file system at a time."""

    def __init__(self, name: str, pid: int, program: Callable[[], Any]) -> None:
        self.name, self.pid, self._program = name, pid, program
        self.wakes = 0.0
        self.seen = 0
        """The oldest state that it may be shown: that behind its own last change."""
        self.age = 0
        """How many states old its next view is, as far as it may be."""
        self.dead = self.over = False
        self.outcome: Any = None
        self._go, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.dead:
                self.outcome = self._program()
        except Dead:
            pass
        except BaseException as error:
            self.outcome = error
        self.over = True
        self.stopped.release()

    def turn(self) -> None:
        """Let it go on to its next call, or its end."""
        self._go.release()
        assert self.stopped.acquire(timeout=10)
        if self.over:
            self._thread.join(10)

    def pause(self) -> None:
        """Wait for the next turn: called by its thread. Raise Dead."""
        if self.dead:  # what it wants to tidy up
            raise Dead
        self.stopped.release()
        self._go.acquire()
        if self.dead:
            raise Dead


class Server:
    """The truth, all states of it, and the clock."""

    def __init__(self) -> None:
        self.now = 1e6
        self.states: list[tuple[float, Tree]] = [(self.now, {"/": Node(self.now)})]
        self.host: Host | None = None
        self.leases: dict[str, tuple[Host, float]] = {}
        """Folder -> whose lease of it, and when that is renewed next."""

    @property
    def tree(self) -> Tree:
        return self.states[-1][1]

    def change(self, tree: Tree) -> None:
        self.states.append((self.now, tree))
        if self.host is not None:
            self.host.seen = len(self.states) - 1

    def call(self) -> Tree:
        """Take a turn; return what the host is shown."""
        host = self.host
        assert host is not None
        host.pause()
        then = bisect_right(self.states, self.now - LATE_S, key=lambda state: state[0]) - 1
        return self.states[max(len(self.states) - 1 - host.age, host.seen, then)][1]

    def sleep(self, seconds: float) -> None:
        assert self.host is not None
        self.host.wakes = self.now + seconds
        self.host.pause()

    def renew(self, every: float, until: float) -> None:
        """Let time pass; whoever lives renews leases."""
        while due := sorted((at, path) for path, (host, at) in self.leases.items() if at <= until and not host.dead):
            at, path = due[0]
            self.now = max(self.now, at)
            self.leases[path] = self.leases[path][0], at + every
            if path in self.tree:
                self.states.append((self.now, {**self.tree, path: self.tree[path]._replace(mtime=self.now)}))
        self.now = max(self.now, until)


class Probe:
    """A file without a name, as `tempfile.TemporaryFile` makes one where the file system has no such thing: it has a name
    for a moment, in which its host may die."""

    def __init__(self, dir: SlowPath, prefix: str) -> None:
        name = dir / f"{prefix}{len(dir.server.states)}"
        name.touch()
        self.made = dir.server.now
        name.unlink()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fileno(self) -> Probe:
        """Return what `os.fstat` is asked of."""
        return self


class SlowPath(PurePosixPath):
    """A path of that file system, with the methods that run folders are written by."""

    server: ClassVar[Server]

    def _state(self) -> Tree:
        return self.server.call()

    def _node(self, tree: Tree) -> Node:
        if str(self) not in tree:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
        return tree[str(self)]

    def exists(self) -> bool:
        return str(self) in self._state()

    def is_file(self) -> bool:
        node = self._state().get(str(self))
        return node is not None and node.text is not None

    def is_dir(self) -> bool:
        node = self._state().get(str(self))
        return node is not None and node.text is None

    def stat(self) -> Any:
        return SimpleNamespace(st_mtime=self._node(self._state()).mtime)

    def glob(self, pattern: str) -> Iterator[SlowPath]:
        names = [SlowPath(path) for path in self._state()]
        return iter([path for path in names if path.parent == self and fnmatch.fnmatchcase(path.name, pattern)])

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        self._state()
        tree = dict(self.server.tree)
        if str(self) in tree:
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, "File exists", str(self))
            return
        for path in [*(self.parents if parents else ()), self]:
            tree.setdefault(str(path), Node(self.server.now))
        self.server.change(tree)

    def write_text(self, text: str) -> None:
        self._state()
        SlowPath(self.parent)._node(self.server.tree)
        self.server.change({**self.server.tree, str(self): Node(self.server.now, text)})

    def touch(self, exist_ok: bool = True) -> None:
        self.write_text("")

    def read(self) -> str:
        """Return what is in the file: opening one that is seen asks the server."""
        self._node(self._state())
        return self._node(self.server.tree).text or ""

    def unlink(self, missing_ok: bool = False) -> None:
        self._state()
        tree = dict(self.server.tree)
        if tree.pop(str(self), None) is None and not missing_ok:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
        self.server.change(tree)


def below(tree: Tree, path: PurePosixPath) -> dict[str, Node]:
    """Return a folder and all that is in it."""
    return {name: node for name, node in tree.items() if name == str(path) or name.startswith(f"{path}/")}


def rename(source: SlowPath, target: SlowPath) -> None:
    """As `os.rename`; refuses to rename over anything."""
    server = source.server
    server.call()
    moved, tree = below(server.tree, source), dict(server.tree)
    if not moved:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(source))
    if str(target) in tree:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(target))
    for name in moved:
        del tree[name]
    server.change({**tree, **{str(target) + name[len(str(source)) :]: node for name, node in moved.items()}})


def utime(path: SlowPath) -> None:
    """As `os.utime`."""
    path.server.call()
    node = path._node(path.server.tree)
    path.server.change({**path.server.tree, str(path): node._replace(mtime=path.server.now)})


def rmtree(path: SlowPath, ignore_errors: bool = False) -> None:
    """As `shutil.rmtree`: file by file, the folder last."""
    for name in sorted(below(path.server.tree, path), reverse=True):
        path.server.call()
        tree = dict(path.server.tree)
        if tree.pop(name, None) is not None:
            path.server.change(tree)
