"""The comparison of predictions with real runs: when a failed run is tried again, and which grid has which page."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from bench.base.exitcodes import Exit
from bench.predict.cells import Prediction
from bench.results.runfolder import EVENTS
from benchmarks import frame, prediction
from benchmarks.prediction import ATTEMPTS, TruthRow, refused, trained
from ddp.core.messages import commands, events
from ddp.process.codec import Record, encode
from tests.bench.streams import make_metrics, make_records, make_spec, write_run

REFUSED = events.Failed(140.0, 1, "such links can be predicted only", "", kind="refused")
BROKEN = events.Failed(140.0, 1, "no room", "", kind="explained")


def failing(place: Path, failure: events.Failed) -> None:
    """Write a run of seed 0 that this failure ended."""
    spec = make_spec()
    records: list[Record] = [*make_records(spec)[:99], failure, commands.Abort("failed", failure.error)]
    folder = write_run(place, spec, make_metrics(spec, records, status="failed"))
    (folder / EVENTS).write_bytes(b"".join(encode(record, 140.0) + b"\n" for record in records))


@pytest.mark.parametrize(("failure", "again"), [(REFUSED, True), (BROKEN, False)])
def test_a_failed_run_is_tried_again_only_where_its_links_were_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: events.Failed, again: bool
) -> None:
    place, tries = tmp_path / "nccl_sync-4-home_100m", []

    def dispatch(words: list[str]) -> Exit:
        tries.append(words)
        failing(place, failure)
        return Exit.FAILED

    monkeypatch.setattr(prediction, "dispatch", dispatch)
    with pytest.raises(RuntimeError, match="ended with 5: bench model=mlp"):
        trained(tmp_path, "mlp", "nccl_sync", 4, "home_100m", (0,))
    assert refused(place, "mlp", 0) is again
    assert not refused(place, "mlp", 1)
    assert not refused(place, "lenet", 0)
    assert len(tries) == (ATTEMPTS if again else 1)


def test_a_failure_without_a_folder_is_no_refusal(tmp_path: Path) -> None:
    assert not refused(tmp_path / "none", "mlp", 0)


@pytest.mark.parametrize(("code", "error"), [(Exit.KILLED, KeyboardInterrupt), (Exit.USAGE, RuntimeError)])
def test_other_ends_are_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: Exit, error: type[BaseException]
) -> None:
    codes = iter([code])
    monkeypatch.setattr(prediction, "dispatch", lambda words: next(codes))
    with pytest.raises(error):
        trained(tmp_path, "mlp", "nccl_sync", 4, "home_100m", (0,))


class Pool:
    """A pool whose second work fails, and the first of which takes for ever."""

    def __init__(self, *_: Any) -> None:
        self.works = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def submit(self, *_: Any) -> Future[None]:
        work, self.works = Future[None](), self.works + 1
        if self.works == 2:
            work.set_exception(RuntimeError("a run ended with 5"))
        return work


def test_a_failed_run_ends_the_comparison_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(prediction, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(frame, "end_processes", lambda: ended.append(True))
    with pytest.raises(RuntimeError, match="a run ended with 5"):
        prediction.train(prediction.SMALL, tmp_path, 0.0, own=False, jobs=1)
    assert ended == [True]


def row() -> TruthRow:
    figures = {"efficiency": None, "waiting": 0.0, "communicating": 0.0, "bytes": 0, "limit": "", "beyond": ()}
    made = Prediction("", "nccl_sync", 3, "", 100.0, 90.0, 110.0, True, plays=1, seconds=1.0, **figures)  # type: ignore[arg-type]  # figures of several types
    return TruthRow("mlp", made, "none", (101.0,), 0, (0.1,))


@pytest.mark.parametrize(
    ("words", "page", "grid"),
    [
        ("--write", None, ""),
        ("--full --write", "truth.md", "The full grid: mlp, lenet, char_rnn in"),
        ("--own --write", "own-steps.md", "The small grid: mlp in"),
        ("--full", None, ""),
    ],
)
def test_a_grid_overwrites_no_page_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, page: str | None, grid: str
) -> None:
    monkeypatch.setattr(prediction, "train", lambda *_: None)
    monkeypatch.setattr(prediction, "rows", lambda *_: [row()])
    monkeypatch.setattr(frame, "REPORTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["prediction", *words.split()])
    assert prediction.main() == 0
    assert [path.name for path in tmp_path.rglob("*.md")] == ([page] if page else [])
    if page:
        assert grid in (tmp_path / "prediction" / page).read_text()
