"""Run folders that look measured: of played cells, with the source of real runs."""

from __future__ import annotations

from pathlib import Path

from bench.predict.calibration import Calibration
from bench.predict.evidence import own_cell
from bench.predict.folder import write_run
from bench.predict.play import play
from bench.results.runfolder import EVENTS


def run_of(own: Calibration, tree: Path) -> Path:
    cell = own_cell(own)
    folder = write_run(cell, own, play(cell, own, own.spec.seed), tree)
    text = (folder / EVENTS).read_text()
    assert text.count('"source":"predicted"') == 1
    (folder / EVENTS).write_text(text.replace('"source":"predicted"', '"source":""'))
    return folder
