from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.base.usage import UsageError, usage
from bench.base.writing import is_listed, write_text
from bench.results.lease import alive, hidden
from bench.results.runfolder import CHECKPOINTS, CONFIG, METRICS, find_runs, finished, read_records, resumable
from bench.results.schema import Metrics
from bench.results.writer import NotInPlace, RunWriter
from bench.runner.resume import agree, locate
from tests.bench.streams import make_metrics, make_records, make_spec, write_run

KEY = ("mlp", "nccl_cadence")


def _write(root: Path, status: str, note: str, run_id: str = "w2-s0-abc") -> Path:
    writer = RunWriter(root, *KEY, run_id)
    metrics = make_metrics(make_spec(), status=status)
    write_text(writer.path / METRICS, metrics.model_dump_json())
    write_text(writer.path / "note", note)
    return writer.commit(status)


def test_a_run_appears_whole(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, *KEY, "w2-s0-abc")
    (writer.path / "half").write_text("x")
    assert find_runs(tmp_path) == ([], []), "a run in the making is not seen"
    writer.discard()
    assert list(tmp_path.rglob("half")) == []
    folder = _write(tmp_path, "ok", "first")
    assert folder == tmp_path / "mlp" / "nccl_cadence" / "w2-s0-abc"
    assert finished(tmp_path, *KEY, "w2-s0-abc")
    assert not finished(tmp_path, *KEY, "w2-s1-abc")


def test_a_failed_rerun_never_destroys_a_finished_run(tmp_path: Path) -> None:
    kept = _write(tmp_path, "ok", "good")
    failed = _write(tmp_path, "failed", "bad")
    assert failed.name == "w2-s0-abc.failed"
    assert (kept / "note").read_text() == "good"
    assert _write(tmp_path, "killed", "worse") == failed
    assert (failed / "note").read_text() == "worse"
    assert _write(tmp_path, "ok", "better") == kept
    assert (kept / "note").read_text() == "better"
    assert not failed.exists(), "what an ok run replaces is gone"


def test_without_a_finished_run_a_failed_one_takes_its_place(tmp_path: Path) -> None:
    first = _write(tmp_path, "failed", "one")
    assert first.name == "w2-s0-abc"
    assert not finished(tmp_path, *KEY, "w2-s0-abc")
    assert _write(tmp_path, "killed", "two") == first


def test_what_dead_processes_left_is_removed_or_put_back(tmp_path: Path) -> None:
    parent = tmp_path / "mlp" / "nccl_cadence"
    dead = 2**22 + 1
    (parent / f".tmp-w2-s0-abc-{dead}").mkdir(parents=True)
    other = parent / f".tmp-w2-s0-xyz-{dead}"
    other.mkdir()
    living = parent / ".tmp-w2-s0-abc-1"
    living.mkdir()
    (parent / f".old-w2-s0-abc-{dead}").mkdir()
    (parent / f".old-w2-s0-abc-{dead}" / "note").write_text("rescued")
    RunWriter(tmp_path, *KEY, "w2-s0-abc").discard()
    assert (parent / "w2-s0-abc" / "note").read_text() == "rescued"
    assert sorted(p.name for p in parent.iterdir()) == sorted(["w2-s0-abc", other.name, living.name])


def test_a_path_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"cannot write runs to .*file"):
        RunWriter(tmp_path / "file", *KEY, "w2-s0-abc")
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o555)
        with pytest.raises(ValueError, match="Permission denied"):
            RunWriter(tmp_path / "locked", *KEY, "w2-s0-abc")


def test_written_text_is_old_or_new(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "one")
    write_text(path, "zwei ü")
    assert path.read_text(encoding="utf-8") == "zwei ü"
    assert list(tmp_path.iterdir()) == [path]


def test_what_the_system_lists_is_written_to_not_replaced() -> None:
    """As root a file could take the place of `/dev/null`, for all processes."""
    assert all(map(is_listed, map(Path, ("/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"))))
    assert not any(map(is_listed, map(Path, ("/dev/shm/a.json", "a.json", "dev/null"))))
    reader, writer = os.pipe()
    try:
        write_text(Path(f"/dev/fd/{writer}"), "one")
        assert os.read(reader, 9) == b"one"
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"schema_version": 1, "run', "not JSON"),
        ("[]", "not a JSON object"),
        ('{"schema_version": 99}', "schema_version is 99"),
        ("{}", "schema_version is None"),
        ('{"schema_version": 1}', "run_id: Field required"),
        (None, "missing"),
        (b"\xff\xfe\x00", "not JSON"),
    ],
)
def test_a_bad_folder_is_named_and_the_rest_goes_on(
    tmp_path: Path, content: str | bytes | None, complaint: str
) -> None:
    good = write_run(tmp_path, make_spec())
    bad = tmp_path / "mlp" / "solo" / "w1-s0-x"
    bad.mkdir(parents=True)
    (bad / "config.json").write_text("{}")
    if content is not None:
        (bad / METRICS).write_bytes(content if isinstance(content, bytes) else content.encode())
    runs, problems = find_runs(tmp_path)
    assert [run.path for run in runs] == [good]
    assert len(problems) == 1
    assert str(bad / METRICS) in problems[0]
    assert complaint in problems[0]
    assert "\n" not in problems[0]


def test_metrics_with_a_number_out_of_range_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, make_spec())
    body = json.loads((folder / METRICS).read_text())
    body["lr"] = "fast"
    (folder / METRICS).write_text(json.dumps(body))
    assert "lr: Input should be a valid number" in find_runs(folder)[1][0]


def test_texts_of_a_result_order_no_terminal_and_begin_no_line(tmp_path: Path) -> None:
    spec = make_spec()
    said = "\x1b[31mred\x1b[0m\r\n::error::owned \u202etxt\x9b2J, größer → 日本"
    folder = write_run(
        tmp_path, spec, make_metrics(spec, status="failed", error=said).model_copy(update={"mode": said})
    )
    before = (folder / METRICS).read_bytes()
    (run,) = find_runs(tmp_path)[0]
    assert run.metrics.error == run.metrics.mode == "�[31mred�[0m ::error::owned �txt�2J, größer → 日本"
    assert (folder / METRICS).read_bytes() == before


@pytest.mark.parametrize("body", [("zero2", None, None), ("elche", {"name": "sync"}, "zero2")])
def test_a_run_of_a_backend_that_was_an_engine_goes_on_under_both_names(body: tuple[Any, Any, Any]) -> None:
    saved = dict(zip(("engine", "policy", "backend"), body, strict=True))
    for said in ({"engine": "zero2"}, {"mode": "zero2"}, {"engine": "elche", "backend": "zero2", "policy": "sync"}):
        agree(said, saved)
    with pytest.raises(ValueError, match="engine=zero3 contradicts the run, which has zero2"):
        agree({"engine": "zero3"}, saved)


def test_a_result_of_a_backend_that_was_an_engine_is_read_as_of_the_backend() -> None:
    metrics = make_metrics(make_spec("nccl_sync"))
    before = metrics.model_dump(mode="json") | {"engine": "zero1", "policy": None, "backend": None, "mode": "zero1"}
    read = Metrics.model_validate(before)
    assert (read.engine, read.policy, read.backend) == ("elche", "sync", "zero1")
    assert Metrics.model_validate(read.model_dump(mode="json")) == read


def test_texts_of_a_configuration_order_no_terminal_either(tmp_path: Path) -> None:
    folder = write_run(tmp_path, make_spec())
    body = json.loads((folder / CONFIG).read_text())
    body["model"] = "\x1b[31mred\nline"
    (folder / CONFIG).write_text(json.dumps(body))
    (run,) = find_runs(tmp_path)[0]
    assert run.config["model"] == "\N{REPLACEMENT CHARACTER}[31mred line"
    with (
        pytest.raises(UsageError, match=r"which has \N{REPLACEMENT CHARACTER}\[31mred line: a resumed run keeps"),
        usage(),
    ):
        agree({"model": "mlp"}, body)


def test_a_single_run_folder_or_a_tree(tmp_path: Path) -> None:
    folder = write_run(tmp_path, make_spec())
    assert [run.path for run in find_runs(folder)[0]] == [folder]
    assert [run.path for run in find_runs(tmp_path)[0]] == [folder]
    with pytest.raises(ValueError, match="is not a folder"):
        find_runs(tmp_path / "nowhere")


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    folder = write_run(tmp_path, make_spec())
    assert list(read_records(folder)) == make_records(make_spec())
    with (folder / "events.jsonl").open("a") as file:
        file.write("garbage\n")
    with pytest.raises(ValueError, match=r"events.jsonl:\d+: malformed"):
        list(read_records(folder))


def test_a_run_that_cannot_be_put_into_place_stays_where_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was in its place stays there; the next run of the cell does not tidy it away, a finished one does."""
    before = _write(tmp_path, "ok", "first")
    rename = os.rename

    def refuse(source: Path, destination: Path) -> None:
        if Path(destination) == before and Path(source).name.startswith(".tmp"):
            raise PermissionError(13, "Permission denied", str(destination))
        rename(source, destination)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(NotInPlace, match=r"\.tmp-w2-s0-abc-\d+@\w+.*Permission denied") as caught:
            _write(tmp_path, "ok", "second")
    assert (before / "note").read_text() == "first"
    (kept,) = before.parent.glob(".tmp-*")
    assert str(kept) in str(caught.value)
    assert {METRICS, "note"} <= {path.name for path in kept.iterdir()}
    dead = kept.with_name(f".tmp-w2-s0-abc-{2**22 + 1}")
    kept.rename(dead)
    RunWriter(tmp_path, *KEY, "w2-s0-abc").discard()
    assert dead.exists()
    _write(tmp_path, "ok", "third")
    assert not dead.exists()


def test_a_folder_may_have_any_number_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "mlp" / "nccl_cadence" / f".tmp-w2-s0-abc-{10**30}").mkdir(parents=True)
    _write(tmp_path, "ok", "first")
    assert not alive(10**30)


def _with_checkpoint(root: Path) -> RunWriter:
    writer = RunWriter(root, *KEY, "w2-s0-abc")
    (writer.path / CHECKPOINTS / "000001").mkdir(parents=True)
    return writer


def _finish(writer: RunWriter) -> Path:
    write_text(writer.path / METRICS, make_metrics(make_spec()).model_dump_json())
    return writer.commit("ok")


def test_checkpoints_are_there_until_the_finished_run_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was killed in between had neither a result nor a checkpoint."""

    def killed(source: Path, destination: Path) -> None:
        raise FileNotFoundError if Path(source).name == "w2-s0-abc" else KeyboardInterrupt

    first = _with_checkpoint(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            _finish(first)
    assert resumable(first.path)
    place = _finish(_with_checkpoint(tmp_path))
    assert sorted(path.name for path in place.iterdir()) == [METRICS]
    assert list(place.parent.iterdir()) == [place]


def test_checkpoints_that_are_left_in_a_finished_run_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda path, **_: None)
        place = _finish(_with_checkpoint(tmp_path))
    assert resumable(place)
    assert [run.path for run in find_runs(tmp_path)[0]] == [place]
    assert finished(tmp_path, *KEY, "w2-s0-abc")
    assert locate(place) == place
    assert _write(tmp_path, "failed", "worse").name == "w2-s0-abc.failed"
    assert _write(tmp_path, "ok", "better") == place
    assert not resumable(place)


def test_a_folder_that_another_process_of_the_same_number_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """A container's first process is number 1 again when the container is started again."""
    before = _with_checkpoint(tmp_path)
    before.discard()
    assert resumable(before.path), "it can be gone on with"
    now = RunWriter(tmp_path, *KEY, "w2-s0-abc")
    own = hidden(now.path)
    assert own is not None
    assert (own.kind, own.name, own.pid, own.here) == ("tmp", "w2-s0-abc", os.getpid(), True)
    with pytest.raises(ValueError, match="in the making by this process already"):
        RunWriter(tmp_path, *KEY, "w2-s0-abc")
    place = _finish(now)
    assert list(place.parent.iterdir()) == [place]
