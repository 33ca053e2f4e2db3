"""Two hosts made of namespaces: do runs over both train as on one host, and what comes of a link that is cut?

    python -m benchmarks.machines [--seeds 3] [--write]     # as root, on Linux; `make machines`; some minutes

Each host has a network, a name, `/dev/shm` and a monotonic clock of its own (the second's is a day ahead). Between them is a
switch, a third namespace; the cut takes a port out of it, so that packets vanish and nobody is told. Every run is started by
two torchrun agents with a c10d rendezvous.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from tabulate import tabulate

from bench.runfolder import find_runs
from bench.schema import Metrics

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "machines.md"
MODES = ("nccl_sync", "nccl_cadence", "cpu_async")
NAMES, ADDRESSES = ("host-0", "host-1"), ("10.77.0.1", "10.77.0.2")
NETWORK = "10.77.0.0/24"
PORT, PORTS = 29400, ("port0", "port1")
AHEAD_S = 86_400
"""How far the clock of the second host is ahead of the first one's."""
DEADLINE_S = 5.0
"""Of runs whose link is cut."""
CUT_EPOCHS, CUT_AT = 100, 10
LIMIT_S = 180.0
"""Nothing takes as long."""
QUIET = ("report=false", "validate=false")


def possible() -> str:
    """Why this cannot be tried here; empty: it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "namespaces need Linux and root"
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is missing"
    words = ("unshare", "--net", "--mount", "--uts", "--time", "--monotonic", "1", "--fork", "true")
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    return f"namespaces cannot be made: {done.stderr.strip()}" if done.returncode else ""


def ip(*words: str) -> None:
    """Run it. Raises CalledProcessError."""
    subprocess.run(("ip", *words), check=True, capture_output=True, timeout=20)


class Link:
    """Two hosts' networks and the switch between them."""

    def __init__(self) -> None:
        tag = f"bench{os.getpid()}"
        self.hosts = (f"{tag}a", f"{tag}b")
        self._switch = f"{tag}s"

    def __enter__(self) -> Link:
        try:
            ip("netns", "add", self._switch)
            ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            ip("-n", self._switch, "link", "set", "switch", "up")
            for host, address, port in zip(self.hosts, ADDRESSES, PORTS, strict=True):
                ip("netns", "add", host)
                ip("-n", host, "link", "set", "lo", "up")
                ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch)
                ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
                ip("-n", host, "link", "set", "eth0", "up")
                ip("-n", self._switch, "link", "set", "dev", port, "master", "switch", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for name in (*self.hosts, self._switch):
            for pid in self.pids(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(("ip", "netns", "delete", name), capture_output=True, timeout=20)

    def pids(self, host: str) -> list[int]:
        """Processes that live on a host."""
        said = subprocess.run(("ip", "netns", "pids", host), capture_output=True, text=True, timeout=20)
        return [int(word) for word in said.stdout.split()]

    def cut(self) -> None:
        """From here on packets between the hosts vanish."""
        ip("-n", self._switch, "link", "set", "dev", PORTS[1], "nomaster")


@dataclass
class Agent:
    """torchrun on one host."""

    process: subprocess.Popen[bytes]
    output: Path
    ended: float | None = None

    @property
    def said(self) -> str:
        """What it printed so far."""
        return self.output.read_text(errors="replace")

    def over(self) -> bool:
        """Whether it has ended; notes when."""
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.monotonic()
        return self.ended is not None


@contextmanager
def agents(link: Link, folder: Path, *words: str) -> Iterator[list[Agent]]:
    """The command on both hosts."""
    key = folder / "key"
    key.touch(0o600)
    key.write_text(secrets.token_hex(32))
    known = zip(("127.0.0.1", *ADDRESSES), ("localhost", *NAMES), strict=True)
    (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in known))
    (folder / "dns").write_text("nameserver 127.0.0.1\n")  # nobody listens there, which is known at once
    started: list[Agent] = []
    with key.open():
        try:
            for number, host in enumerate(link.hosts):
                output = folder / f"host-{number}.txt"
                with output.open("wb") as file:
                    process = subprocess.Popen(
                        _command(host, number, folder, *words), cwd=folder, stdout=file, stderr=subprocess.STDOUT,
                        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "DDP_KEY_FILE": str(key)},
                        start_new_session=True,
                    )  # fmt: skip
                started.append(Agent(process, output))
            yield started
        finally:
            for host in link.hosts:
                for pid in link.pids(host):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            for agent in started:
                agent.process.wait(20)


def _command(host: str, number: int, names: Path, *words: str) -> list[str]:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
    ]
    torchrun += [f"--rdzv-endpoint={NAMES[0]}:{PORT}", "-m", "bench", *words]
    private = (
        f"hostname {NAMES[number]} && mount --bind {names}/hosts /etc/hosts && mount --bind {names}/dns /etc/resolv.conf && "
        'mount -t tmpfs none /dev/shm && export TMPDIR=/dev/shm && exec "$@"'
    )
    space = ["unshare", "--mount", "--uts", "--time", "--monotonic", str(AHEAD_S * number), "--fork", "--kill-child"]
    return ["ip", "netns", "exec", host, *space, "sh", "-c", private, "sh", *torchrun]


def trained(link: Link, folder: Path, *words: str) -> Metrics:
    """A run over both hosts, uncut. RuntimeError if it does not end well."""
    with agents(link, folder, *words, f"output={folder}/runs", f"cluster.bind={NETWORK}") as both:
        wait_for(lambda: all(agent.over() for agent in both))
        codes = [agent.process.returncode for agent in both]
        if codes != [0, 0]:
            raise RuntimeError(f"exit codes {codes}: {both[0].said[-3000:]} {both[1].said[-3000:]}")
    return found(folder)


def found(folder: Path) -> Metrics:
    """The one run in a folder."""
    (run,), _ = find_runs(folder / "runs")
    return run.metrics


def wait_for(what: object, limit_s: float = LIMIT_S) -> bool:
    """Whether it became true in time."""
    until = time.monotonic() + limit_s
    assert callable(what)
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def alone(folder: Path, *words: str) -> Metrics:
    """The same run on this host, by itself."""
    command = [sys.executable, "-m", "bench", *words, "world_size=2", f"output={folder}/runs"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return found(folder)


@dataclass
class Cut:
    """What became of a run whose link was cut."""

    metrics: Metrics
    ended_s: float
    """From the cut to the end of the run, the report of it included."""
    named_s: float
    """From the cut to when the lost rank was given up."""
    other_s: float
    """From the cut to the end of the process on the other host."""
    other: str
    """Its last words."""
    left: int
    """Processes left on the other host, besides torchrun's own."""


def cut(link: Link, folder: Path, tolerate: bool, *words: str) -> Cut:
    """A run whose link is cut in mid-training. RuntimeError if something hangs."""
    words = (
        *words,
        f"train.epochs={CUT_EPOCHS}",
        f"cluster.deadline_s={DEADLINE_S}",
        f"cluster.tolerate_loss={tolerate}",
    )
    with agents(link, folder, *words, f"output={folder}/runs", f"cluster.bind={NETWORK}") as both:
        here, there = both
        if not wait_for(lambda: f"epoch {CUT_AT:3}/{CUT_EPOCHS}" in here.said or here.over()) or here.over():
            raise RuntimeError(f"it did not begin to train: {here.said} {there.said}")
        link.cut()
        at = time.monotonic()
        times: dict[str, float] = {}

        def seen() -> bool:
            for name, sign in (
                ("named", "is lost" in here.said or "failed:" in here.said),
                ("ended", bool(list(folder.glob("runs/*/*/w*/metrics.json"))) and _gone(link, 0)),
                ("other", _gone(link, 1)),
            ):
                if sign:
                    times.setdefault(name, time.monotonic() - at)
            return len(times) == 3

        if not wait_for(seen):
            raise RuntimeError(f"it hangs, only {times} were seen: {here.said[-3000:]} {there.said[-3000:]}")
        words_there = re.findall(r"^bench: .*", there.said, re.MULTILINE)
        return Cut(
            found(folder), times["ended"], times["named"], times["other"], (words_there or [""])[-1],
            len(_ours(link, 1)),
        )  # fmt: skip


def _ours(link: Link, host: int) -> list[int]:
    """Processes of the command on a host: all but the agent and what it stands in."""
    ours = []
    for pid in link.pids(link.hosts[host]):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "torch.distributed.run" not in words and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
                ours.append(pid)
    return ours


def _gone(link: Link, host: int) -> bool:
    return not _ours(link, host)


@dataclass
class Row:
    """One mode."""

    one: list[float] = field(default_factory=list)
    two: list[float] = field(default_factory=list)
    goes_on: Cut | None = None
    ends: Cut | None = None


def measure(seeds: int) -> dict[str, Row]:
    """Everything, mode by mode; one host and two in turn."""
    rows = {mode: Row() for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="machines-") as scratch:
        for mode, row in rows.items():
            for seed in range(seeds):
                words = ("model=mlp", f"mode={mode}", f"seed={seed}", *QUIET)
                for name, values in (("one", row.one), ("two", row.two)):
                    folder = _new(scratch, mode, name, str(seed))
                    if name == "one":
                        metrics = alone(folder, *words)
                    else:
                        with Link() as link:
                            metrics = trained(link, folder, *words)
                    assert metrics.final.eval is not None
                    values.append(metrics.final.eval)
                print(f"{mode} seed {seed}: one host {row.one[-1]:.4f}, two {row.two[-1]:.4f}", flush=True)
            for tolerate in (True, False):
                with Link() as link:
                    folder = _new(scratch, mode, "cut", str(tolerate))
                    became = cut(link, folder, tolerate, "model=mlp", f"mode={mode}", *QUIET)
                print(f"{mode} cut, tolerate_loss={tolerate}: {became}", flush=True)
                if tolerate:
                    row.goes_on = became
                else:
                    row.ends = became
    return rows


def _new(scratch: str, *names: str) -> Path:
    folder = Path(scratch) / "-".join(names)
    folder.mkdir()
    return folder


def table(rows: dict[str, Row]) -> str:
    """The page."""
    raise NotImplementedError


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/machines.md")
    asked = parser.parse_args()
    if why := possible():
        sys.exit(f"machines: {why}")
    made = table(measure(asked.seeds))
    print(made)
