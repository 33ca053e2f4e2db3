"""A SLURM cluster of two nodes on this host, from Debian packages that are unpacked but not installed. Needs root on
Linux.

Owns its processes and ends each that it started, by process
id. There is no accounting (sacct fails), and node names do not resolve.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = (
    *(
        "munge",
        "libmunge2",
        "slurmctld",
        "slurmd",
        "slurm-client",
        "slurm-wlm-basic-plugins",
        "libhwloc15",
        "liblua5.1-0",
    ),
)
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "elche-bench" / "slurm"
UP_S = 30.0


class Unavailable(Exception):
    """SLURM cannot be had here; the text says why."""


def unpacked(cache: Path = CACHE) -> Path:
    """Return the folder of the unpacked packages, downloaded by apt-get where they are not there. Raises Unavailable."""
    root = cache / "root"
    if (root / "usr/sbin/slurmctld-wlm").is_file():
        return root
    if os.getuid() or not all(map(shutil.which, ("apt-get", "dpkg"))):
        raise Unavailable("SLURM of unpacked packages needs root, apt-get and dpkg")
    part = cache / f"part-{os.getpid()}"
    part.mkdir(parents=True)
    try:
        got = subprocess.run(["apt-get", "download", *PACKAGES], cwd=part, capture_output=True, text=True, timeout=120)
        if got.returncode:
            raise Unavailable(f"apt-get download: {(got.stderr.strip().splitlines() or ['failed'])[-1]}")
        for package in sorted(part.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(part / "root")], check=True, timeout=60)
        if not root.exists():
            (part / "root").rename(root)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"SLURM's packages cannot be had: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return root


@dataclass
class Cluster:
    """Two nodes that are this host."""

    root: Path
    folder: Path
    ports: tuple[int, int, int]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which SLURM's commands are found."""
        libraries = [*self.root.glob("usr/lib/*-linux-gnu"), *self.root.glob("usr/lib/*-linux-gnu/slurm-wlm")]
        own = {
            "PATH": f"{self.folder / 'bin'}:{self.root / 'usr/bin'}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }
        return {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | own

    def run(self, *words: str, timeout_s: float = 60.0) -> str:
        """Run a command of SLURM's; return what it prints."""
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=True
        ).stdout

    def _start(self, name: str, words: Sequence[str]) -> None:
        log = (self.folder / f"{name}.out").open("ab")
        self.processes[name] = subprocess.Popen(
            words,
            env=self.environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=self.folder,
        )
        log.close()

    def start(self) -> None:
        """Start all daemons; return when both nodes are idle. Raises Unavailable."""
        (self.folder / "bin").mkdir()
        for name in ("state", "n1", "n2"):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(self._configuration(), encoding="utf-8")
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        munged = [str(self.root / "usr/sbin/munged"), "--foreground", "--force", f"--key-file={key}"]
        for option, name in (("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")):
            munged.append(f"--{option}={self.folder / f'munge.{name}'}")
        self._start("munged", munged)
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start(
            "slurmctld", [str(self.root / "usr/sbin/slurmctld-wlm"), "-D", "-c", "-f", str(self.folder / "slurm.conf")]
        )
        for node in ("n1", "n2"):
            self.start_node(node)
        self._wait(lambda: self.run("sinfo", "-h", "-o", "%T").strip() == "idle", "the nodes")

    def start_node(self, node: str) -> None:
        """Start the daemon of a node, as after a reboot: without the scripts of jobs that it had."""
        for left in (self.folder / node).glob("job*"):
            shutil.rmtree(left)
        stepd = str(self.root / "usr/sbin/slurmstepd-wlm")
        words = [
            str(self.root / "usr/sbin/slurmd-wlm"),
            "-D",
            "-N",
            node,
            "-f",
            str(self.folder / "slurm.conf"),
            "-d",
            stepd,
        ]
        self._start(node, words)

    def _wait(self, there: object, name: str) -> None:
        until = time.monotonic() + UP_S
        while True:
            try:
                if callable(there) and there():
                    return
            except (OSError, subprocess.SubprocessError):
                pass
            gone = [each for each, process in self.processes.items() if process.poll() is not None]
            if gone or time.monotonic() > until:
                logs = [path.read_text(errors="replace")[-600:] for path in sorted(self.folder.glob("*.out"))]
                raise Unavailable(f"{name} did not come up ({', '.join(gone) or 'no answer'}): {' | '.join(logs)}")
            time.sleep(0.1)

    def _configuration(self) -> str:
        plugins = next(self.root.glob("usr/lib/*-linux-gnu/slurm-wlm"))
        control, first, second = self.ports
        host, cores = socket.gethostname(), os.cpu_count() or 1
        return "\n".join([
            "ClusterName=two", f"SlurmctldHost={host}(127.0.0.1)", "SlurmUser=root", "SlurmdUser=root",
            f"AuthType=auth/munge\nAuthInfo=socket={self.folder / 'munge.socket'}", "CryptoType=crypto/munge",
            f"PluginDir={plugins}", f"StateSaveLocation={self.folder / 'state'}", f"SlurmdSpoolDir={self.folder}/%n",
            f"SlurmctldPidFile={self.folder}/ctld.pid", f"SlurmdPidFile={self.folder}/%n.pid",
            f"SlurmctldLogFile={self.folder}/ctld.log", f"SlurmdLogFile={self.folder}/%n.log",
            f"SlurmctldPort={control}", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "AccountingStorageType=accounting_storage/none",
            "JobAcctGatherType=jobacct_gather/none", "MpiDefault=none", "SlurmdParameters=config_overrides",
            "ReturnToService=2", "SlurmdTimeout=10", "KillWait=20", "SchedulerParameters=sched_interval=2,bf_interval=2",
            f"NodeName=n1 NodeAddr=127.0.0.1 NodeHostname={host} Port={first} CPUs={cores}",
            f"NodeName=n2 NodeAddr=127.0.0.1 NodeHostname={host} Port={second} CPUs={cores}",
            "PartitionName=all Nodes=n1,n2 Default=YES MaxTime=60 State=UP", "",
        ])  # fmt: skip

    def stop(self) -> None:
        """End all jobs and daemons."""
        with suppress(OSError, subprocess.SubprocessError):
            self.run("scancel", "--full", "--user=root")
            until = time.monotonic() + UP_S
            while self.run("squeue", "-h").strip() and time.monotonic() < until:  # steps outlive the daemons
                time.sleep(0.2)
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _free_ports() -> tuple[int, int, int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    first, second, third = (int(listener.getsockname()[1]) for listener in listeners)
    for listener in listeners:
        listener.close()
    return first, second, third


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a running cluster, with its files in `folder`, which must be there and be empty. Raises Unavailable."""
    made = Cluster(unpacked(), folder, _free_ports())
    try:
        made.start()
        yield made
    finally:
        made.stop()
