"""Two hosts made of Linux namespaces, and torchrun's agents on them.

Each host has a network, a name, `/dev/shm` and a monotonic clock of its own (the second's is a day ahead). A third
namespace is the switch between them. A cut removes a port of the switch, so that packets vanish without an error.
Needs root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES, ADDRESSES, PORTS = ("host-0", "host-1"), ("10.77.0.1", "10.77.0.2"), ("port0", "port1")
NETWORK = "10.77.0.0/24"
RENDEZVOUS = 29400
AHEAD_S = 86_400
"""How far the clock of the second host is ahead of the first one's."""


def possible() -> str:
    """Why this cannot be done here; empty: it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "namespaces need Linux and root"
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is missing"
    words = ("unshare", "--net", "--mount", "--uts", "--time", "--monotonic", "1", "--fork", "true")
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    return f"namespaces cannot be made: {done.stderr.strip()}" if done.returncode else ""


def wait_for(what: Callable[[], bool], limit_s: float) -> bool:
    """Whether it became true in time."""
    until = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _ip(*words: str) -> None:
    """Run `ip`. Raises CalledProcessError."""
    subprocess.run(("ip", *words), check=True, capture_output=True, timeout=20)


class Link:
    """The networks of two hosts, and the switch between them. A context manager: nothing is left of them."""

    def __init__(self) -> None:
        tag = f"bench{os.getpid()}"
        self._hosts, self._switch = (f"{tag}a", f"{tag}b"), f"{tag}s"

    def __enter__(self) -> Link:
        switch = self._switch
        try:
            _ip("netns", "add", switch)
            _ip("-n", switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", switch, "link", "set", "switch", "up")
            for host, address, port in zip(self._hosts, ADDRESSES, PORTS, strict=True):
                _ip("netns", "add", host)
                _ip("-n", host, "link", "set", "lo", "up")
                _ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
                _ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", host, "link", "set", "eth0", "up")
                _ip("-n", switch, "link", "set", "dev", port, "master", "switch", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()
        for name in (*self._hosts, self._switch):
            subprocess.run(("ip", "netns", "delete", name), capture_output=True, timeout=20)

    def cut(self) -> None:
        """From here on packets between the hosts vanish."""
        _ip("-n", self._switch, "link", "set", "dev", PORTS[1], "nomaster")

    def clear(self) -> None:
        """End all processes on the hosts."""
        for number in (0, 1):
            for pid in self._pids(number):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _pids(self, number: int) -> list[int]:
        said = subprocess.run(("ip", "netns", "pids", self._hosts[number]), capture_output=True, text=True, timeout=20)
        return [int(word) for word in said.stdout.split()]

    def running(self, number: int) -> list[int]:
        """Processes of the command on a host: all but torchrun's agent and what that stands in."""
        ours = []
        for pid in self._pids(number):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
                if "torch.distributed.run" not in words and not zombie:
                    ours.append(pid)
        return ours

    def words(self, number: int, folder: Path, *command: str) -> list[str]:
        """`command` on a host. `folder` holds `hosts` and `dns`, which it sees as its own."""
        private = (
            f"hostname {NAMES[number]} && mount --bind {folder}/hosts /etc/hosts && "
            f"mount --bind {folder}/dns /etc/resolv.conf && mount -t tmpfs none /dev/shm && "
            'export TMPDIR=/dev/shm && exec "$@"'
        )
        clock = ("--time", "--monotonic", str(AHEAD_S * number))
        space = ("unshare", "--mount", "--uts", *clock, "--fork", "--kill-child", "sh", "-c", private, "sh")
        return ["ip", "netns", "exec", self._hosts[number], *space, *command]


@dataclass
class Agent:
    """torchrun on one host."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def said(self) -> str:
        """What it and the command printed so far."""
        return self.output.read_text(errors="replace")

    def over(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None


@contextmanager
def agents(link: Link, folder: Path, *words: str) -> Iterator[tuple[Agent, Agent]]:
    """`python -m bench WORDS` by torchrun on both hosts, one rank each, with a key; ended with the context."""
    key = folder / "key"
    key.touch(0o600)
    key.write_text(secrets.token_hex(32))
    known = zip(("127.0.0.1", *ADDRESSES), ("localhost", *NAMES), strict=True)
    (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in known))
    (folder / "dns").write_text("nameserver 127.0.0.1\n")  # nobody listens there, which is known at once
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1")
    torchrun = (*torchrun, "--rdzv-backend=c10d", f"--rdzv-endpoint={NAMES[0]}:{RENDEZVOUS}", "-m", "bench", *words)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "DDP_KEY_FILE": str(key)}
    started: list[Agent] = []
    try:
        for number, name in enumerate(NAMES):
            output = folder / f"{name}.txt"
            with output.open("wb") as file:
                process = subprocess.Popen(
                    link.words(number, folder, *torchrun), cwd=folder, stdout=file, stderr=subprocess.STDOUT,
                    env=environment, start_new_session=True,
                )  # fmt: skip
            started.append(Agent(process, output))
        yield started[0], started[1]
    finally:
        link.clear()
        for agent in started:
            agent.process.wait(20)
