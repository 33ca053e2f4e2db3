"""The page of `benchmarks.seeds`: what it says of runs, and that the committed page is the one that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results.runfolder import Run
from benchmarks.seeds.__main__ import REPORT, page
from benchmarks.seeds.parts import ours
from tests.bench.streams import make_metrics, make_spec


@pytest.mark.parametrize(
    ("epochs", "said"), [((1, 1), "; 1 epoch, "), ((2,), "; 2 epochs, "), ((1, 2), "; 1 to 2 epochs, ")]
)
def test_epochs_are_counted_in_words(epochs: tuple[int, ...], said: str) -> None:
    assert said in ours([planned(each) for each in epochs])


def planned(epochs: int) -> Run:
    return Run(Path("run"), make_metrics(make_spec()).model_copy(update={"epochs_planned": epochs}))


@pytest.mark.parametrize("name", ["needle_scaling", "needle_memory"])  # the others prove, for minutes
def test_the_committed_page_has_the_words_of_the_command(tmp_path: Path, name: str) -> None:
    committed = (REPORT / "README.md").read_text()
    parts = page([name], tmp_path, None).split("\n\n")
    assert [part for part in parts if part not in committed and not part.startswith(("|", "Not trained"))] == []
