"""`bench join`: a run that is going on gets a rank more."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any, cast

import pytest

from bench.base.environment import launched_by
from bench.base.exitcodes import Exit
from bench.base.usage import UsageError
from bench.command.verbs import join_command
from bench.command.verbs.join_command import Answers, _check
from bench.results.lease import HOST
from bench.results.runfolder import find_runs, read_records
from ddp.core.membership.joining import OFFERED
from ddp.core.messages.commands import Drop, Restart
from ddp.core.messages.events import Lost, Progress
from ddp.core.messages.join_events import Joined, Offered
from ddp.core.messages.run_bounds import RunHeader
from ddp.process.codec import encode
from tests.bench.streams import make_metrics, make_records, make_spec
from tests.commands.killed_runs import QUIET, command, in_model, written
from tests.warm import PICTURES, Warm, wait_for

WORDS = ("model=mlp", "data.name=digits", "train.batch_size=64", *QUIET)


def test_a_rank_joins_a_run_that_is_going_on(warm: Warm, tmp_path: Path) -> None:
    slow = (
        "mode=nccl_cadence",
        "world_size=3",
        "cluster.absent=1",
        "cluster.speeds=[0.02,0.02,0.02]",
        "train.epochs=6",
    )
    process = warm.start(tmp_path, "-m", "bench", *WORDS, *slow, env={PICTURES: "none"})
    try:
        assert wait_for(lambda: list(tmp_path.glob("runs/*/*/.tmp-*/events.jsonl")), process)
        code, out, err = command(warm, tmp_path, "join", "runs", "--ranks", "2")
        assert (code, err) == (0, "")
        assert out.startswith("rank 2 has joined, ")
        assert "no more ranks are absent: 1 of the processes will be for ranks that are lost" in out
        code, out, err = process.result(120.0)
    finally:
        process.kill_all()
    assert (code, err) == (0, ""), out
    (run,), _ = find_runs(tmp_path / "runs")
    counts = in_model(run.path)
    assert (len(counts), set(counts.values())) == (run.metrics.samples, {1})
    assert (run.metrics.faults, run.metrics.late) == ([], [2]), "to come late is no fault"
    assert run.metrics.goodput is not None
    assert run.metrics.goodput.parts.absent > 0
    assert [rank.absent > 0 for rank in run.metrics.breakdown] == [False, False, True]
    assert (
        sum(record.samples for record in read_records(run.path) if isinstance(record, Progress) and record.rank == 2)
        > 0
    )
    code, _, err = command(warm, tmp_path, "join", "runs")
    assert (code, err) == (2, "bench: runs: name one run that is going on; none is\n")


@pytest.mark.slow
def test_a_rank_that_joined_is_there_when_the_run_is_resumed(warm: Warm, tmp_path: Path) -> None:
    """The rest was trained without it, and the result said that it never came."""
    slow = ("mode=nccl_sync", "world_size=3", "cluster.absent=1", "cluster.speeds=[0.05,0.05,0.05]", "train.epochs=12")
    process = warm.start(tmp_path, "-m", "bench", *WORDS, *slow, "checkpoint.spacing_s=0", env={PICTURES: "none"})
    try:
        assert wait_for(lambda: list(tmp_path.glob("runs/*/*/.tmp-*/events.jsonl")), process)
        assert command(warm, tmp_path, "join", "runs")[1].startswith("rank 2 has joined, ")
        before = max(int(place.name) for place in written(tmp_path, 0)) if written(tmp_path, 0) else 0
        (found, *_) = wait_for(lambda: written(tmp_path, before + 2), process)
    finally:
        process.kill_all()
    code, out, err = command(warm, tmp_path, f"resume={found.parents[1]}", *QUIET)
    assert (code, err) == (0, "")
    assert "3 ranks on cpu" in out
    (run,), _ = find_runs(tmp_path / "runs")
    assert (run.metrics.late, run.metrics.absent) == ([2], [])
    code, out, _ = command(warm, tmp_path, "validate", str(run.path))
    assert "FAIL" not in out, "of the batches before it joined"


def test_what_came_of_an_offer_is_read_from_the_records() -> None:
    answers = Answers(["a", "b"])
    assert answers.add(Joined(1.0, 1, 0)) is None, "not in a process of ours"
    offered = (Offered(2.0, "a"), Offered(2.0, "b"), Restart(3, 1, OFFERED))
    assert [answers.add(record) for record in offered] == [None] * 3
    assert (answers.taken, answers.open) == (2, True)
    assert answers.add(Restart(0, 1, "start 1 of 3 at most until it is back")) is None
    assert answers.add(Progress(3.0, 0, 0, 1, 8, 0.1, 1.0, 0.1)) is None
    assert answers.open, "rank 3 is on its way"
    assert answers.add(Joined(4.0, 3, 1)) == 3
    assert (answers.open, answers.started) == (False, {3})


def test_a_rank_that_is_lost_before_it_has_joined_is_not_waited_for() -> None:
    """The command waited for a minute."""
    answers = Answers(["a"])
    for record in (Offered(1.0, "a"), Restart(2, 1, OFFERED), Drop(2, "killed"), Restart(2, 2, "start 2 of 3")):
        answers.add(record)
    assert answers.open, "it is started again"
    answers.add(Drop(2, "killed"))
    answers.add(Progress(3.0, 0, 0, 1, 8, 0.1, 1.0, 0.1))
    assert (answers.open, answers.lost, answers.joined) == (False, {2}, set())


def test_a_rank_that_joins_as_the_run_ends_has_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end was seen before the records of it were read: 0 ranks joined."""

    class Tail:
        def new(self) -> list[object]:
            return [
                Offered(2.0, "a"),
                Restart(1, 1, OFFERED),
                Joined(3.0, 1, 0),
                Progress(4.0, 1, 0, 1, 8, 0.1, 1.0, 0.1),
            ]

    monkeypatch.setattr(join_command, "writer", lambda path: None)
    assert join_command._offered(["a"], tmp_path, cast(Any, Tail()), 5.0) == Exit.OK
    assert capsys.readouterr().out.startswith("rank 1 has joined")


def test_a_process_that_is_lost_before_it_has_joined_leaves_a_result() -> None:
    """The command ended with exit code 6, without a result."""
    spec = make_spec("nccl_cadence", 3)
    every = make_records(spec)
    own = [place for place, record in enumerate(every) if getattr(record, "rank", None) == 1]
    lost = [Lost(every[own[0]].at, 1, "gone"), Drop(1, "gone")]  # type: ignore[union-attr]
    others = [record for record in every if getattr(record, "rank", None) != 1]
    metrics = make_metrics(spec, [*others[: own[0]], *lost, *others[own[0] :]])
    assert metrics.throughput.per_rank[1] == 0
    assert [fault.rank for fault in metrics.faults] == [1]


def test_two_commands_that_offer_at_once_count_their_own_ranks_only() -> None:
    """Each counted the other's: it withdrew its own offer, which nobody had taken, and said that -1 is left."""
    one, other = Answers(["one"]), Answers(["other"])
    for answers in (one, other):
        for record in (Offered(1.0, "one"), Restart(2, 1, OFFERED), Joined(2.0, 2, 0)):
            answers.add(record)
    assert (one.taken, one.joined, one.started) == (1, {2}, {2})
    assert (other.taken, other.joined, other.open) == (0, set(), False)
    for answers in (one, other):
        for record in (Offered(3.0, "other"), Progress(3.0, 0, 0, 1, 8, 0.1, 1.0, 0.1)):
            answers.add(record)
    assert (one.taken, other.taken, other.started, other.open) == (1, 1, set(), False)


@pytest.mark.parametrize("moved", ["before", "after"])
def test_an_offer_to_a_run_that_ends_leaves_nothing_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moved: str
) -> None:
    """It was an error that named a missing file, with the code for a wrong command; or a file in the finished run."""
    folder, place = tmp_path / ".tmp-w2-s0-abc-1@here", tmp_path / "w2-s0-abc"
    folder.mkdir()
    (folder / "config.json").write_text('{"backend": "nccl", "world_size": 2}')
    (folder / "events.jsonl").touch()
    monkeypatch.setattr(join_command, "_going_on", lambda path: folder)
    tokens = join_command.secrets.token_hex
    if moved == "before":
        monkeypatch.setattr(join_command.secrets, "token_hex", lambda size: (folder.rename(place), tokens(size))[1])
    monkeypatch.setattr(join_command.time, "sleep", lambda seconds: folder.rename(place))
    monkeypatch.setattr(join_command, "writer", lambda path: 1 if path.exists() else None)
    assert join_command.join(Namespace(path=tmp_path, ranks=1, wait=5.0)) == Exit.FAILED
    assert capsys.readouterr().out == "the run has ended: 0 ranks joined\n"
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "events.jsonl"]


def test_a_run_that_begins_anew_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that the run has ended, which went on in a folder of its own."""
    own = f"{os.getppid()}@{HOST}"
    folder, anew = tmp_path / f".tmp-w2-s0-abc-{own}", tmp_path / f".tmp-w2-s0-abc-0{own}"
    folder.mkdir()
    (folder / "config.json").write_text('{"backend": "nccl", "world_size": 2}')
    (folder / "events.jsonl").touch()

    def lost(seconds: float) -> None:
        if folder.exists():
            folder.rename(tmp_path / "w2-s0-abc.failed")
        else:
            anew.mkdir()
            (anew / "events.jsonl").touch()

    monkeypatch.setattr(join_command.time, "sleep", lost)
    assert join_command.join(Namespace(path=tmp_path, ranks=1, wait=5.0)) == Exit.FAILED
    assert "has lost all its ranks and starts them again" in capsys.readouterr().out


def test_a_run_that_nobody_can_join_is_refused() -> None:
    virtual = {"backend": "nccl", "world_size": 2, "engine": "virtual"}
    for config in ({"backend": "zero1", "world_size": 2}, {"backend": None, "world_size": 1}, virtual):
        with pytest.raises(ValueError, match="no rank can join a run of this mode"):
            _check(config, Path("runs/x"))
    with pytest.raises(ValueError, match="tolerate_loss"):
        _check({"backend": "cpu", "world_size": 2, "cluster": {"tolerate_loss": False}}, Path("runs/x"))
    _check({"backend": "nccl", "world_size": 2, "cluster": {}}, Path("runs/x"))


@pytest.mark.parametrize(("ranks", "refused"), [(2, True), (1, False)])
def test_a_run_whose_ranks_a_launcher_has_started_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, refused: bool
) -> None:
    """The command waited for a minute. With one process of the launcher, the run starts its ranks itself."""
    folder = tmp_path / ".tmp-w2-s0-abc-1@here"
    folder.mkdir()
    (folder / "config.json").write_text('{"backend": "nccl", "world_size": 2}')
    env = launched_by({"DDP_LAUNCHER": "torchrun", "WORLD_SIZE": str(ranks), "MASTER_ADDR": "here"})
    assert env["launcher"]["ranks"] == ranks
    (folder / "events.jsonl").write_bytes(encode(RunHeader(1.0, 1.0, {}, env, {})) + b"\n")
    monkeypatch.setattr(join_command, "_going_on", lambda path: folder)
    monkeypatch.setattr(join_command, "writer", lambda path: 1)
    options = Namespace(path=tmp_path, ranks=1, wait=0.0)
    if refused:
        with pytest.raises(UsageError, match=f"under torchrun, with resume={tmp_path}/w2-s0-abc to go on"):
            join_command.join(options)
    else:
        assert join_command.join(options) == Exit.FAILED, "it had no time"
    assert not list(folder.glob("offer-*"))


@pytest.mark.parametrize("end", [Exit.FAILED, KeyboardInterrupt])
def test_an_offer_that_nobody_takes_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: Any
) -> None:
    """The run took it later, though the command had given up."""
    folder = tmp_path / ".tmp-w2-s0-abc-1@here"
    folder.mkdir()
    (folder / "config.json").write_text('{"backend": "nccl", "world_size": 2}')
    (folder / "events.jsonl").touch()
    monkeypatch.setattr(join_command, "_going_on", lambda path: folder)
    monkeypatch.setattr(join_command, "writer", lambda path: 1)
    offered: list[int] = []

    def sleep(seconds: float) -> None:
        offered.append(len(list(folder.glob("offer-*"))))
        if end is KeyboardInterrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr(join_command.time, "sleep", sleep)
    options = Namespace(path=tmp_path, ranks=2, wait=0.05)
    if end is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            join_command.join(options)
    else:
        assert join_command.join(options) == end
        assert capsys.readouterr().out == "the run has not answered in 0.05 s: 0 ranks joined\n"
    assert set(offered) == {2}
    assert not list(folder.glob("offer-*"))
