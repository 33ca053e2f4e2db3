"""Several hosts write runs into one file system: whose folders are left alone, and for how long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.base import writing
from bench.results import lease
from bench.results.lease import LEASE_S, Lease, hidden, leased, making, moved
from bench.results.runfolder import CONFIG, unfinished, writer
from bench.results.writer import RunWriter
from bench.runner.resume import locate

CELL = ("mlp", "nccl_cadence", "w2-s0-abc")
STRANGER = 2**22 + 1
"""A number that no process here has."""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunWriter:
    """A run that another host is making."""
    with monkeypatch.context() as patch:
        patch.setattr(lease, "HOST", "otherone")
        patch.setattr(os, "getpid", lambda: STRANGER)
        return RunWriter(tmp_path, *CELL)


def late(folder: Path, seconds: float) -> None:
    """Its lease was renewed so long ago."""
    then = time.time() - seconds
    os.utime(folder, (then, then))


def test_a_run_that_another_host_makes_is_left_alone(elsewhere: RunWriter, tmp_path: Path) -> None:
    mine = RunWriter(tmp_path, *CELL)
    assert elsewhere.path.is_dir()
    assert mine.path != elsewhere.path
    assert mine.commit("ok").is_dir()
    assert elsewhere.path.is_dir()
    ((of, process),) = unfinished(tmp_path)
    assert of.name == CELL[2]
    assert process is not None
    assert process.process == f"{STRANGER} of another host"


def test_it_is_removed_when_its_lease_has_run_out(elsewhere: RunWriter, tmp_path: Path) -> None:
    late(elsewhere.path, LEASE_S - 30)
    RunWriter(tmp_path, *CELL).discard()
    assert elsewhere.path.is_dir()
    late(elsewhere.path, LEASE_S + 30)
    assert writer(elsewhere.path) is None
    RunWriter(tmp_path, *CELL).discard()
    assert not elsewhere.path.exists()


def test_two_hosts_with_the_same_process_number_have_folders_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As containers do, whose first process is number 1."""
    mine = RunWriter(tmp_path, *CELL)
    monkeypatch.setattr(lease, "HOST", "otherone")
    theirs = RunWriter(tmp_path, *CELL)
    assert mine.path.is_dir()
    assert mine.path != theirs.path
    for one in (mine, theirs):
        (one.path / "note").write_text("whole")
        assert (one.commit("failed") / "note").read_text() == "whole"
    assert [path.name for path in mine.path.parent.iterdir()] == [CELL[2]]


def test_what_another_host_moved_aside_is_put_back_only_when_it_is_dead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "mlp" / "nccl_cadence" / CELL[2]
    with monkeypatch.context() as patch:
        patch.setattr(lease, "HOST", "otherone")
        aside = moved(place)
    aside.mkdir(parents=True)
    RunWriter(tmp_path, *CELL).discard()
    assert aside.is_dir(), "it is about to be replaced"
    late(aside, LEASE_S + 30)
    RunWriter(tmp_path, *CELL).discard()
    assert place.is_dir()


def test_a_lease_is_renewed_until_it_is_released(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lease, "RENEWAL_S", 0.01)
    late(tmp_path, LEASE_S + 30)
    before = set(threading.enumerate())  # other tests leave leases that are not released
    own, until = Lease(tmp_path), time.monotonic() + 10
    (renewing,) = set(threading.enumerate()) - before
    while not leased(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    assert leased(tmp_path)
    own.release()
    renewing.join(10)
    assert not renewing.is_alive()
    late(tmp_path, LEASE_S + 30)
    time.sleep(0.05)
    assert not leased(tmp_path)


def test_going_on_waits_for_the_lease_of_another_host_and_not_longer(
    elsewhere: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that died renews no more. One that lives says so, and its run is its own."""
    monkeypatch.setattr(lease, "LEASE_S", 1.0)
    monkeypatch.setattr(lease, "POLL_S", 0.05)
    (elsewhere.path / CONFIG).write_text("{}")
    place = elsewhere.path.with_name(CELL[2])
    ticking = threading.Timer(0.3, os.utime, (elsewhere.path,))
    ticking.start()
    with pytest.raises(ValueError, match=f"still going on, in process {STRANGER} of another host"):
        locate(place)
    ticking.join()
    with pytest.raises(ValueError, match="has no checkpoint"):
        locate(place)


def test_who_is_killed_while_it_asks_for_the_time_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[list[Path]] = []

    def looked(descriptor: int, *, real: Callable[[int], os.stat_result] = os.fstat) -> os.stat_result:
        seen.append(list(tmp_path.iterdir()))
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", looked)
    before = time.time()
    assert before - 1.0 < lease.now(tmp_path) < time.time() + 1.0
    assert seen
    assert not any(seen)
    assert lease.now(tmp_path / "missing") >= before


def test_names_say_whose_a_hidden_folder_is(tmp_path: Path) -> None:
    own = hidden(making(tmp_path / "w2-s0-abc.failed"))
    assert own is not None
    assert (own.kind, own.name, own.pid, own.here) == ("tmp", "w2-s0-abc.failed", os.getpid(), True)
    before = hidden(tmp_path / ".tmp-w2-s0-ab12cd34-77")
    assert before is not None
    assert (before.name, before.pid, before.here) == ("w2-s0-ab12cd34", 77, True), "of an earlier version"
    assert hidden(tmp_path / "w2-s0-abc") is None


def test_a_file_system_that_renames_over_nothing_gets_the_new_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def replace(source: Path, destination: Path) -> None:
        if Path(destination).exists():
            raise FileExistsError(17, "File exists")
        os.rename(source, destination)

    monkeypatch.setattr(os, "replace", replace)
    for text in ("one", "two"):
        writing.write_text(tmp_path / "a.json", text)
    assert (tmp_path / "a.json").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_two_processes_that_make_the_same_run_say_so(tmp_path: Path) -> None:
    parent = tmp_path / "mlp" / "nccl_cadence"
    for name in ("w2-s0-abc", "w2-s0-abc-def"):
        (parent / f".tmp-{name}-1").mkdir(parents=True)
    (parent / f".tmp-w2-s0-abc-{2**22 + 1}").mkdir()  # killed
    writer = RunWriter(tmp_path, "mlp", "nccl_cadence", "w2-s0-abc")
    (warning,) = writer.rivals
    assert warning.startswith("process 1 trains this run, too: of both results the later stays")
    writer.discard()
