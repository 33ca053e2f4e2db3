"""What a thousand ranks, a few samples per second, a run that is gone and a seed that diverged do to pages and lines."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import pytest
from playwright.sync_api import Page, expect

from bench.base import number_format
from bench.base.style import some
from bench.command.printed.run_lines import row_line, sweep_table
from bench.command.printed.summary import in_words
from bench.command.verbs import doctor
from bench.dashboard import page as pages
from bench.dashboard.board import ROW, Piece, whole
from bench.report.page import speeds
from bench.report.sections.breakdown import FEWEST_ROWS, MOST_ROWS, drawn_ranks
from bench.results.cells import Sample, cells
from bench.results.live.history import RunHistory
from bench.results.runfolder import Run
from bench.results.schema import MOST_RANKS
from bench.runner.live_view import _rate
from bench.timeline import write_timeline
from bench.timeline.figure import MOST_RANKS as DRAWN
from bench.validate.verdicts.verdict import remark
from ddp.core.messages.events import Progress
from tests.bench.streams import LAUNCHED, make_metrics, make_records, make_spec, write_run
from tests.browser import browser  # noqa: F401
from tests.browser import page as tab  # noqa: F401


def test_of_many_ranks_the_extremes_and_others_evenly_are_drawn(tmp_path: Path) -> None:
    load = {rank: float(rank == 777) - float(rank == 333) for rank in range(1000)}
    shown = some(list(load), 64, load.__getitem__)
    assert len(shown) <= 64
    assert {0, 333, 777, 999} <= {*shown}
    assert some([1, 2, 3], 64, float) == [1, 2, 3]
    many = [[{"rank": rank, "compute": 0.5} for rank in range(1000)] for _ in range(20)]
    assert len(drawn_ranks(many[:1], lambda row: row["compute"])) <= MOST_ROWS
    assert len(drawn_ranks(many, lambda row: row["compute"])) <= 16 * FEWEST_ROWS
    spec = make_spec("nccl_sync", 100)
    write_timeline(tmp_path, make_records(spec, windows=1, steps=1), spec, LAUNCHED)
    height = matplotlib.image.imread(tmp_path / "timeline.png").shape[0]
    spec = make_spec("nccl_sync", DRAWN)
    write_timeline(tmp_path, make_records(spec, windows=1, steps=1), spec, LAUNCHED)
    assert height <= matplotlib.image.imread(tmp_path / "timeline.png").shape[0]


def test_slow_runs_have_a_speed() -> None:
    assert [number_format.rate(value) for value in (0.0123, 3.456, 10.0, 99.94, 12345.6)] == [
        "0.0123",
        "3.46",
        "10",
        "99.9",
        "12,346",
    ]
    assert number_format.rate(4.4, 5000.0) == "4"
    assert speeds(Sample(2, 0.5, 0.01)) == "0.5 ± 0.01"
    assert _rate(0.25) == "0.25 samples/s"
    m = make_metrics(make_spec("solo"))
    slow = m.model_copy(update={"throughput": m.throughput.model_copy(update={"samples_per_s": 0.25})})
    assert "  0.25 samples/s" in row_line(slow)
    assert " 0.25 " in sweep_table(cells([Run(Path("a"), slow)]))


def test_every_rank_that_a_run_may_have_is_followed() -> None:
    history = RunHistory()
    for rank in (1024, MOST_RANKS - 1, MOST_RANKS):
        history.add(Progress(10.0, rank, 0, 1, 100, 1.0, 1.0, 0.1))
    assert {*history.run.ranks} == {1024, MOST_RANKS - 1}


def test_shared_memory_is_looked_at_where_it_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "SHARED", tmp_path / "not there")
    assert doctor._memory() == ("shared memory", None, "can be had")


def test_a_seed_that_diverged_is_said_first() -> None:
    one = remark("INCONCLUSIVE", "diverged", "mlp nccl_sync ×2", "1 of 3 seeds diverged (2): at most 70 % do (95 %)")
    none = remark("INCONCLUSIVE", "diverged", "mlp nccl_sync ×2", "0 of 3 seeds diverged: at most 60 % do (95 %)")
    assert in_words([one])[0] == "mlp nccl_sync ×2: 1 of 3 seeds diverged (2)"
    assert in_words([none])[0].startswith("no check failed")


def test_an_export_opens_on_what_it_was_made_of(tab: Page, tmp_path: Path) -> None:  # noqa: F811
    root = tmp_path / "runs"
    for seed in range(3):
        write_run(root, make_spec(seed=seed))
    keys = sorted({piece.key for piece in whole(root)})
    (tmp_path / "it.html").write_text(pages.exported(whole(root, {keys[2]}), root))
    tab.goto((tmp_path / "it.html").as_uri())
    assert tab.locator("#runs li.chosen").get_attribute("data-key") == keys[2]


def test_a_run_that_is_gone_makes_room_for_another(tab: Page, tmp_path: Path) -> None:  # noqa: F811
    for seed in range(2):
        write_run(tmp_path / "runs", make_spec(seed=seed))
    pieces = whole(tmp_path / "runs")
    gone, other = sorted({piece.key for piece in pieces})
    (tmp_path / "it.html").write_text(pages.exported([*pieces, Piece(99, ROW, gone, "null")], tmp_path))
    tab.goto(f"{(tmp_path / 'it.html').as_uri()}#run={gone}")
    assert "There are no runs here" not in tab.inner_text("#detail")
    tab.evaluate(f"choose(['{other}']); take('row', '{other}', state.rows.get('{other}'))")
    tab.evaluate(f"choose(['{gone}'])")
    tab.evaluate(f"take('row', '{gone}', null)")
    expect(tab.locator("#runs li.chosen")).to_have_count(1)
    assert tab.locator("#runs li.chosen").get_attribute("data-key") == other
