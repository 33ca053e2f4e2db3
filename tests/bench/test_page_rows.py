"""Page one with many ways of training: rows, their numbers in the picture, and why some are slow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.base.style import styled
from bench.report.answer import answer
from bench.report.blocks import Beside, Facts, Verdicts
from bench.report.facts import LIMITS
from bench.report.sections.answer import rows_of, section
from tests.bench import drawn
from tests.bench.test_answer import SOLO, page
from tests.bench.test_page_one import QUICK, SLOW, blocks_of


def test_many_points_bear_the_numbers_of_their_rows(tmp_path: Path) -> None:
    shown = drawn.example(tmp_path)
    with styled():
        found = blocks_of(shown)
    first = next(block.other for block in found if isinstance(block, Beside))
    assert isinstance(first, Verdicts)
    assert [next(iter(row.values())).strip("*").partition(" ")[0] for row in first.rows] == [*"123456789"]
    assert next(iter(first.rows[first.marked[0]].values())).startswith(f"**{first.marked[0] + 1} → ")
    svg = (tmp_path / "answer.svg").read_text()
    assert all(f">{number}</text>" in svg for number in range(1, 10))
    assert "nccl_sync" not in svg
    few = page(tmp_path / "few", {"solo": SOLO, "nccl_sync": QUICK, "cpu_async": SLOW}, {"nccl_sync": "PASS"})
    with styled():
        section(few)
    assert ">nccl_sync</text>" in (tmp_path / "few" / "answer.svg").read_text()


def test_what_the_answer_names_has_a_row_and_its_number_however_many_did_not_pass(tmp_path: Path) -> None:
    shown = drawn.example(tmp_path, drawn.MANY)
    ((_, trained), *_) = shown.workloads.items()
    found = answer(shown, trained)
    assert found.chosen is not None
    for several, most in ((True, 8), (False, 10)):
        first = rows_of(found, several)
        assert found.chosen in first
        assert len(first) == most <= found.options.index(found.chosen) + 1
    ten = replace(found, options=found.options[:9])
    assert rows_of(ten, several=True) == ten.options, "for the sake of one row nothing is left out"
    with styled():
        table = next(block.other for block in blocks_of(shown) if isinstance(block, Beside))
    place = found.options.index(found.chosen) + 1
    assert [next(iter(row.values())) for row in table.rows][-1] == f"**{place} → {found.chosen.cell.about.mode}**"


def test_why_collectives_inside_the_steps_are_slow_on_small_models_is_said(tmp_path: Path) -> None:
    limits = [dict(block.items)[LIMITS] for block in blocks_of(drawn.example(tmp_path)) if isinstance(block, Facts)]
    told = [text for text in limits if "torch_ddp" in text]
    assert told
    assert all("(gloo costs each step a fixed time)" in text for text in told)
