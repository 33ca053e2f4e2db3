from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest

from bench.report import write_report
from bench.results.cells import cells
from bench.results.rerun_command import command
from bench.results.runfolder import find_runs
from tests.bench.report_parts import part
from tests.bench.report_parts import undrawn as undrawn
from tests.bench.streams import make_metrics, make_records, make_spec, write_run


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Solo with three seeds, two modes, one with emulated speeds, one failed, one unreadable."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        write_run(root, make_spec("solo", seed=seed))
    write_run(root, make_spec("nccl_sync"))
    write_run(root, make_spec("nccl_cadence"))
    write_run(root, make_spec("nccl_cadence", speeds=(1.0, 0.4), warnings=("speeds are emulated",)))
    failed = make_spec("cpu_async")
    metrics = make_metrics(failed, make_records(failed)[:99], status="failed", error="rank 1 failed: boom")
    write_run(root, failed, metrics)
    broken = root / "mlp" / "solo" / "w1-s9-broken"
    broken.mkdir()
    (broken / "metrics.json").write_text('{"schema_version": 1,')
    return root


@pytest.fixture(scope="module")
def report(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tree, tmp_path_factory.mktemp("report"))


def test_what_went_wrong_comes_first(report: Path) -> None:
    text = report.read_text()
    problems = text.index("## Problems")
    assert "w1-s9-broken" in text[problems:]
    assert "rank 1 failed: boom" in text[problems:]
    assert problems < text.index("## Comparison")
    assert (
        "7 runs of 4 ways of training and of one device: **6 ok**, **1 failed**. **1 folder could not be read.**"
        in text
    )


def test_a_folder_that_cannot_be_read_is_not_called_finished(report: Path, tmp_path: Path) -> None:
    assert "1 folder could not be read (why: *Problems*, above)." in part(report, "Missing and failed")
    write_run(tmp_path / "runs", make_spec("solo"))
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "metrics.json").write_text("{")
    text = part(write_report(tmp_path / "runs", tmp_path / "report"), "Missing and failed")
    assert "1 folder could not be read" in text
    assert "Every run that is here finished" not in text


@pytest.mark.usefixtures("undrawn")
def test_a_folder_whose_name_is_no_text_prevents_no_report(tmp_path: Path) -> None:
    """Nothing was written, and the message was one of Python's codec."""
    sound, cut, edited = (write_run(tmp_path / "runs", make_spec(mode)) for mode in ("solo", "cpu_sync", "nccl_sync"))
    result = (cut / "metrics.json").read_text()
    (cut / "metrics.json").write_text(result[:99])
    (edited / "metrics.json").write_text(result.replace('"epochs_planned":3', '"epochs_planned":0'))
    for folder in (sound, cut, edited):
        folder.rename(folder.with_name(os.fsdecode(b"w1-\xff")))
    report = write_report(tmp_path / "runs", tmp_path / os.fsdecode(b"report-\xff"))
    assert "w1-" in part(report, "Problems")
    assert "1 run of one device: **1 ok**. **2 folders could not be read.**" in report.read_text()
    assert report.with_suffix(".html").exists()


def test_solo_is_in_the_ranking_and_every_row_says_n(report: Path) -> None:
    section = report.read_text().split("## Comparison")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert any("**solo**" in row and "reference" in row and "3 ok" in row for row in rows)
    assert len(rows) == 1 + 5
    assert "| n |" in re.sub(" +", " ", rows[0])
    failed = next(row for row in rows if "cpu_async" in row)
    assert "1 failed" in failed
    assert "–" in failed


def test_numbers_are_those_of_the_runs(tree: Path, report: Path) -> None:
    by_label = {cell.label: cell for cell in cells(find_runs(tree)[0])}
    solo, cadence = by_label["solo"], by_label["nccl_cadence ×2"]
    assert solo.eval.n == 3
    text = report.read_text()
    assert f"Solo ends at accuracy {solo.eval.mean:.4f} (n=3)" in text
    assert cadence.speed.mean is not None
    assert solo.speed.mean is not None
    row = next(line for line in text.splitlines() if line.startswith("| nccl_cadence ×2 "))
    assert f"{100 * cadence.speed.mean / solo.speed.mean / 2:.0f} %" in row


def test_every_figure_exists_with_data_and_alt_text(report: Path) -> None:
    figures = re.findall(r"!\[([^\]]*)\]\(([^)]+\.png)\)", report.read_text())
    assert len(figures) >= 4
    for alt, name in figures:
        assert len(alt) > 20
        picture = matplotlib.image.imread(report.parent / name)
        assert picture.shape[1] > 500
        assert len(pd.read_csv(report.parent / name.replace(".png", ".csv"))) > 0


def test_emulated_speeds_and_warnings_are_said(report: Path) -> None:
    text = report.read_text()
    assert "Slow devices were emulated** in 1 of 7 runs" in text
    assert "speeds are emulated (1 run)" in text
    assert "nccl_cadence ×2 at speeds 1/0.4" in text


def test_equal_runs_give_equal_bytes(tree: Path, report: Path, tmp_path: Path) -> None:
    again = write_report(tree, report.parent.parent / "again-report")
    names = sorted(path.name for path in report.parent.iterdir())
    assert names == sorted(path.name for path in again.parent.iterdir())
    for name in names:
        assert (report.parent / name).read_bytes() == (again.parent / name).read_bytes(), name


def test_one_run_and_no_run_have_a_report(tree: Path, tmp_path: Path) -> None:
    folder = next((tree / "mlp" / "nccl_sync").iterdir())
    text = write_report(folder, tmp_path / "one", baseline=tmp_path / "none.json").read_text()
    assert "1 run of 1 way of training" in text
    assert "NO_BASELINE" in text
    (tmp_path / "empty").mkdir()
    assert "none readable" in write_report(tmp_path / "empty", tmp_path / "nothing").read_text()
    with pytest.raises(ValueError, match="not a folder"):
        write_report(tmp_path / "nowhere", tmp_path / "x")


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_is_refused_makes_no_figure(tmp_path: Path) -> None:
    """Its time was part of the recommendation, though no check had judged it."""
    for mode in ("solo", "nccl_sync"):
        folders = [write_run(tmp_path / "runs", make_spec(mode, seed=seed)) for seed in range(2)]
    with (folders[0] / "events.jsonl").open("ab") as events:
        events.write(b"garbage\n")
    text = write_report(tmp_path / "runs", tmp_path / "out", baseline=tmp_path / "none.json").read_text()
    assert "3 runs of 1 way of training and of one device: **3 ok**. **1 folder could not be read.**" in text
    problems = text.split("## Problems")[1].split("\n## ")[0]
    assert f"{folders[0].name}/events.jsonl" in problems.replace("\\", "")
    assert "malformed message" in problems


def test_a_report_that_cannot_be_written_is_one_clear_line(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write the report"):
        write_report(tree, tmp_path / "file" / "below")


def test_commands_name_what_matters(tree: Path) -> None:
    commands = {cell.label: command(cell.runs) for cell in cells(find_runs(tree)[0])}
    assert commands["solo"].startswith("python -m bench -m model=mlp mode=solo ")
    assert commands["solo"].endswith(" seed=0,1,2")
    assert "'cluster.speeds=[1,0.4]'" in commands["nccl_cadence ×2 at speeds 1/0.4"]
    assert "world_size=2" in commands["nccl_sync ×2"]


def test_judging_imports_no_torch() -> None:
    packages = "bench.report, bench.validate, bench.results.analyze, bench.timeline, bench.dashboard, bench.loggers"
    code = f"import sys, {packages}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("higher", "shown"), [(True, "-5.00 pt"), (False, "-5.00 pt")])
def test_the_gap_is_the_metric_less_solos(tmp_path: Path, higher: bool, shown: str) -> None:
    for mode, value in (("solo", 0.95), ("nccl_sync", 0.90)):
        spec = make_spec(mode, higher_is_better=higher)
        metrics = make_metrics(spec)
        final = metrics.final.model_copy(update={"eval": value})
        write_run(tmp_path / "runs", spec, metrics.model_copy(update={"final": final}))
    text = write_report(tmp_path / "runs", tmp_path / "out").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| nccl_sync ×2 "))
    assert shown in row
    rows = [line for line in text.split("## Comparison")[1].splitlines() if line.startswith("| ")]
    assert ("**solo**" in rows[1]) == higher, "the best comes first"


@pytest.mark.usefixtures("undrawn")
def test_strong_scaling_holds_the_global_batch_against_one_rank(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write_run(root, make_spec("solo", batch_size=64))
    write_run(root, make_spec("nccl_sync", batch_size=32))
    write_run(root, make_spec("nccl_sync", batch_size=64))  # a global batch of 128, which no single rank has
    write_run(root, make_spec("nccl_sync", batch_size=16, world_size=4))
    text = write_report(root, tmp_path / "report").read_text()
    section = text.split("## Strong scaling")[1].split("\n## ")[0]
    rows = [re.sub(r"\s+", "", line).split("|")[1:5] for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows == [["solo", "1", "64", "1"], ["nccl_sync×2", "2", "32", "1"], ["nccl_sync×4", "4", "16", "1"]]
    assert "global batch 64" in section
    assert "global batch 128" not in section


@pytest.mark.usefixtures("undrawn")
def test_strong_scaling_holds_no_depth_against_another(tmp_path: Path) -> None:
    for depth in (20, 32):
        for mode, batch in (("solo", 64), ("nccl_sync", 32)):
            write_run(tmp_path / "runs", make_spec(mode, batch_size=batch, depth=depth))
    section = write_report(tmp_path / "runs", tmp_path / "report").read_text().split("## Strong scaling")[1]
    titles = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("### ")]
    assert titles == [f"### mlp of depth {depth} on digits, global batch 64, 3 epochs" for depth in (20, 32)]
    rows = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("| solo ")]
    assert ["1.00" in row for row in rows] == [True, True], "each depth has a reference of its own"


def test_without_a_whole_batch_on_one_rank_there_is_no_strong_scaling(report: Path) -> None:
    assert "Strong scaling" not in report.read_text()
