"""A disk without room, no descriptors left, a shut folder: the line names the file, what is kept, and how to go on."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import loggers, report
from bench.base.usage import reason
from bench.base.writing import write_text
from bench.results.journal import Journal
from bench.results.runfolder import find_runs
from bench.results.writer import RunWriter
from ddp.core.messages.events import Alive
from tests.bench.conftest import Bench
from tests.bench.report_parts import undrawn as undrawn
from tests.held_back import held_back

SOLO = ("model=mlp", "mode=solo", "train.epochs=2")
SOFT, HARD = resource.getrlimit(resource.RLIMIT_FSIZE)


@pytest.fixture(autouse=True)
def limits_put_back() -> Iterator[None]:
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (SOFT, HARD))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "full",
            r"File too large: runs/.*/\.tmp-w1-s0-\w+-\d+@\w+/\S+\.jsonl; nothing is kept, as there is no checkpoint yet",
        ),
        (
            "saved",
            r"File too large: runs/.*\.jsonl; the last checkpoint is runs/.*/checkpoints/000003; with room again, go on "
            r"by: python -m bench resume=/\S+/runs/mlp/solo/w1-s0-\w+",
        ),
        (
            "files",
            r"Too many open files; raise the limit \(ulimit -n\); nothing is kept, as there is no checkpoint yet",
        ),
    ],
)
def test_the_line_says_what_is_kept_and_how_to_go_on(
    quiet: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str, said: str
) -> None:
    monkeypatch.setenv("BENCH_FAKE", how)
    code = quiet(*SOLO)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SOFT, HARD))
    assert code == 5
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bench: cannot write")]
    assert len(lines) == 1
    assert re.fullmatch(f"bench: cannot write the results: {said}", lines[0]), lines[0]
    left = [path for path in Path("runs").glob("*/*/.tmp-*") if path.is_dir()]
    assert len(left) == (1 if how == "saved" else 0)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("report", "runs"), "cannot write the report to reports/runs: File too large: reports/runs/"),
        (
            ("compare", "runs", "runs"),
            "cannot write the comparison to reports/comparison: File too large: reports/comparison/",
        ),
        (
            ("validate", "runs", "--junit", "out/junit.xml"),
            "cannot write --junit out/junit.xml: File too large: out/junit.xml",
        ),
        (
            ("goodput", "--trace", "meta", "--ranks", "2", "--hours", "1", "--json", "out.json"),
            "File too large: out.json",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_without_room_for_its_results_failed_though_it_was_right(
    quiet: Bench, bench: Bench, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], what: str
) -> None:
    """It ended with the code for a wrong command."""
    assert quiet(*SOLO) == 0
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, HARD))
    code = bench(*words)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SOFT, HARD))
    assert code == 5
    assert f"bench: {what}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("file", "File exists: reports/runs"),
        ("shut", "Permission denied: reports/runs"),
        ("full", "No space left on device: reports/runs/report.md"),
    ],
)
def test_a_report_that_cannot_be_written_fails_the_command_and_keeps_its_runs(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    undrawn: None,
    how: str,
    why: str,
) -> None:
    """The command ended with 0."""

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    folder = Path("reports")
    folder.mkdir()
    if how == "file":
        (folder / "runs").touch()
    with monkeypatch.context() as patch, held_back():
        if how == "shut":
            folder.chmod(0o500)
        elif how == "full":
            patch.setattr(report, "write_text", full)
        code = bench("-m", *SOLO, "validate=false")
    folder.chmod(0o755)
    out = capsys.readouterr().out
    assert code == 5
    assert f"report    not written, the results are kept: cannot write the report to reports/runs: {why}\n" in out
    (run,) = find_runs(Path("runs"))[0]
    assert run.metrics.status == "ok"
    (again,) = re.findall(r"^again     python -m bench (.*)$", out, re.MULTILINE)
    if how == "file":
        (folder / "runs").unlink()
    assert bench(*again.split()) == 0
    assert (folder / "runs" / "report.html").is_file()


@pytest.mark.parametrize("many", [True, False], ids=["sweep", "run"])
def test_of_a_sweep_with_a_logger_each_report_that_cannot_be_written_is_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], undrawn: None, many: bool
) -> None:
    """Loggers store the report of each run. A sweep said nothing, and ended with 0."""
    own = report.write_text

    def full(path: Path, text: str) -> None:
        if path.is_relative_to("runs"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        own(path, text)

    monkeypatch.setenv("BENCH_BAD_LOGGER", "fine")
    monkeypatch.setitem(loggers.LOGGERS, "tensorboard", "tests.bench.loggers.bad_logger")
    words = ("-m", "seed=0,1") if many else ()
    with monkeypatch.context() as patch:
        patch.setattr(report, "write_text", full)
        code = bench(*words, *SOLO, "logger=tensorboard", "validate=false")
    out = " ".join(capsys.readouterr().out.split())
    assert code == 5
    folders = sorted(run.path for run in find_runs(Path("runs"))[0])
    assert len(folders) == 1 + many
    for folder in folders:
        why = f"No space left on device: {folder}/report.md"
        again = f"python -m bench report {folder} --out {folder}"
        said = f"report not written, the results are kept: cannot write the report to {folder}: {why}"
        assert out.count(said) == 1, "of a single run, once"
        assert out.count(again) == 1
        assert bench(*again.split()[3:]) == 0
        assert (folder / "report.html").is_file()
    assert ("report reports/runs" in out) is many, "the report of all runs is written"


def test_a_record_is_written_whole_or_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Journal(path) as journal:
        journal.add(Alive(1.0, 0), 1.0)
        one = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * one + one // 2, HARD))
        journal.add(Alive(2.0, 0), 2.0)
        with pytest.raises(OSError, match="File too large") as caught:
            journal.add(Alive(3.0, 0), 3.0)
        assert caught.value.filename == str(path)


def test_a_file_that_cannot_be_written_is_named_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_text(path, "{}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, HARD))
    with pytest.raises(OSError, match="File too large") as caught:
        write_text(path, "x" * 1000)
    assert caught.value.filename == str(path)
    assert path.read_text() == "{}"
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.json"]


@pytest.mark.parametrize("left", ["w1-s0-abc", "w1-s0-abc.failed", ".tmp-w1-s0-abc-4194305"])
def test_a_run_that_could_not_be_gone_on_with_is_as_it_was(tmp_path: Path, left: str) -> None:
    writer = RunWriter(tmp_path, "mlp", "solo", "w1-s0-abc")
    assert writer.left() == "nothing is kept, as there is no checkpoint yet"
    (tmp_path / "mlp" / "solo" / left / "checkpoints" / "000001").mkdir(parents=True)
    words = writer.left()
    assert words.startswith("the earlier run is as it was; with room again, go on by: python -m bench resume=")
    assert words.endswith("/mlp/solo/w1-s0-abc")
    writer.discard()


def test_of_a_copy_the_full_place_is_named() -> None:
    """`shutil` names what it read first."""
    for code, place in ((errno.ENOSPC, "runs/kept"), (errno.EACCES, "memory/kept")):
        error = OSError(code, os.strerror(code), "memory/kept", None, "runs/kept")
        assert reason(error) == f"{os.strerror(code)}: {place}"
