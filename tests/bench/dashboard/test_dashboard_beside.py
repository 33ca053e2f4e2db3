"""The dashboard beside a run: a process of its own that harms nobody."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.config.config_checks import dashboard_port
from bench.dashboard.board import ROW
from bench.dashboard.process import DashboardProcess
from bench.results.runfolder import find_runs
from tests.bench.conftest import Bench
from tests.bench.dashboard.dashboards import messages, until
from tests.bench.streams import make_records, make_spec, write_run


def test_a_run_with_a_dashboard_is_the_same_run_and_survives_it(
    quiet: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[DashboardProcess] = []

    class Watched(DashboardProcess):
        def __init__(self, output: Path, port: int) -> None:
            super().__init__(output, port)
            made.append(self)
            self._process.kill()  # it dies at the worst moment

    monkeypatch.setattr("bench.dashboard.process.DashboardProcess", Watched)
    assert quiet("-m", "model=mlp", "mode=solo", "seed=0,1", "output=with", "dashboard=true") == 0
    assert quiet("model=mlp", "mode=solo", "output=without") == 0
    assert re.search(r"^dashboard http://127\.0\.0\.1:\d+/$", capsys.readouterr().out, re.MULTILINE)
    ((one, _), _), ((other,), _) = find_runs(tmp_path / "with"), find_runs(tmp_path / "without")
    assert one.config == other.config
    assert one.metrics.run_id == other.metrics.run_id
    assert len(made) == 1  # a sweep has one
    assert not any(psutil.pid_exists(beside._process.pid) for beside in made)


def test_a_dashboard_beside_a_run_serves_and_ends_with_it(tmp_path: Path) -> None:
    write_run(tmp_path, make_spec())
    code = (
        "import sys, time; from pathlib import Path; from bench.dashboard.process import DashboardProcess\n"
        "b = DashboardProcess(Path(sys.argv[1])); print(b.address, b._process.pid, flush=True); time.sleep(60)"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    address, pid = run.stdout.readline().split()
    stream = messages(int(address.rpartition(":")[2].strip("/")))
    assert [next(stream).kind for _ in range(2)] == ["hello", ROW]
    stream.close()
    run.kill()
    run.communicate()
    until(lambda: not psutil.pid_exists(int(pid)))


def test_judging_a_tree_of_runs_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    make_records(make_spec())
    code = "import sys; import bench.dashboard.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_dashboard_takes_a_port_and_one_that_is_taken_is_a_line(
    quiet: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert quiet("model=mlp", "mode=solo", f"dashboard={port}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bench: dashboard={port}: ")
    assert "choose another port" in line
    assert quiet("model=mlp", "mode=solo", "dashboard=70000") == 2
    assert "a port from 2 to 65535" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/**/metrics.json"))


@pytest.mark.parametrize(("value", "port"), [(True, 0), ("on", 0), (False, None), (None, None), (8000, 8000)])
def test_what_asks_for_a_dashboard(value: object, port: int | None) -> None:
    assert dashboard_port(value) == port
