"""A seed is one value, however often it was trained; and whose runs an exit code speaks of."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench import report
from bench.base.exitcodes import Exit
from bench.base.number_format import in_turn
from bench.command.printed import summary
from bench.report import write_report
from bench.report.measures.compare import rivals, wires
from bench.report.measures.differences import qualities
from bench.report.measures.time_to_target import reach
from bench.report.page import Page
from bench.report.sections import curves
from bench.report.sections.changes import Pair
from bench.results.cells import cells
from bench.results.runfolder import CONFIG, find_runs
from bench.validate.baselines.folder import load
from tests.bench.references import FIVE, baselines, cell, put, with_eval
from tests.bench.streams import make_metrics, make_records, make_spec, write_run


def twice(root: Path, mode: str, values: tuple[float, ...]) -> Path:
    """Every seed in two folders."""
    for name in ("a", "b"):
        cell(root / name, mode, values)
    return root


def test_a_seed_counts_once_in_samples_and_intervals(tmp_path: Path) -> None:
    base = baselines(tmp_path)
    once, again = tmp_path / "once", tmp_path / "again"
    for mode, values in (("solo", FIVE), ("nccl_sync", FIVE[:3])):
        cell(once, mode, values)
        twice(again, mode, values)
    found = []
    for root in (once, again):
        grouped = cells(find_runs(root)[0])
        (quality,) = qualities(Page(root, tmp_path, tuple(grouped), (), (), load(base)), grouped)
        found.append((quality.difference, [(one.eval, one.speed) for one in grouped]))
    assert found[0] == found[1]
    assert (found[1][0].n, found[1][0].n_base) == (3, 5)
    many = cells(find_runs(again)[0])
    assert [one.status for one in many] == ["10 ok", "6 ok"], "status counts runs"


def test_the_first_run_of_a_seed_is_its_value(tmp_path: Path) -> None:
    put(tmp_path / "b", make_spec("solo"), 0.5)
    put(tmp_path / "a", make_spec("solo"), 0.9)
    spec = make_spec("solo")
    write_run(tmp_path / "0", spec, make_metrics(spec, status="failed", error="boom"))
    (one,) = cells(find_runs(tmp_path)[0])
    assert [m.final.eval for m in one.one_each] == [0.9]


def test_no_section_of_the_report_counts_a_seed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report.page, "FIGURES", 0)
    for mode, values in (("solo", FIVE[:3]), ("nccl_cadence", FIVE[:2])):
        for tree in ("once", "again"):
            cell(tmp_path / tree / "a", mode, values)
    for seed, status in enumerate(("ok", "failed")):
        spec = make_spec("nccl_cadence", seed=seed)
        other = make_metrics(spec, make_records(spec, windows=20), status=status)
        write_run(tmp_path / "again" / "b", spec, other)
    once, again = (write_report(tmp_path / tree, tmp_path / f"of-{tree}").read_text() for tree in ("once", "again"))
    parts = [dict(part.split("\n", 1) for part in text.split("\n## ")[1:]) for text in (once, again)]
    of_runs = {
        "Problems",
        "Comparison",
        "Missing and failed",
        "Was every sample trained once?",
        "Timelines",
        "Environment",
        "Reproduce",
    }
    assert parts[0].keys() - of_runs >= {"Short answers", "Time to target", "Where the time went", "Communication"}
    for name in parts[0].keys() - of_runs:
        assert parts[0][name] == parts[1][name], name
    drawn = [curves.curve(one) for one in cells(find_runs(tmp_path / "again")[0])]
    assert [len(of_cell) for of_cell in drawn] == [3 * 3, 2 * 3], "an evaluation of each seed after each epoch"


def test_what_stands_for_a_seed_is_a_finished_run_else_a_failed_one_else_an_interrupted_one(tmp_path: Path) -> None:
    for seed, statuses in enumerate((("failed", "ok"), ("killed", "diverged"), ("killed", "killed"), ("ok", "ok"))):
        for name, status in zip("ab", statuses, strict=True):
            spec = make_spec("solo", seed=seed)
            write_run(tmp_path / name, spec, make_metrics(spec, status=status))
    (one,) = cells(find_runs(tmp_path)[0])
    shown = [(run.metrics.status, run.path.relative_to(tmp_path).parts[0]) for run in one.counted]
    assert shown == [("ok", "b"), ("diverged", "b"), ("killed", "a"), ("ok", "a")]
    assert [m.seed for m in one.one_each] == [0, 3]
    assert reach(one).n == 3


def test_changes_count_a_seed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report.page, "FIGURES", 0)
    (before,) = cells(find_runs(cell(tmp_path / "old", "solo", FIVE[:3]))[0])
    values = tuple(value + 0.001 for value in FIVE[:3])
    (once,) = cells(find_runs(cell(tmp_path / "once", "solo", values))[0])
    (now,) = cells(find_runs(twice(tmp_path / "new", "solo", values))[0])
    assert Pair(before, now).quality == Pair(before, once).quality
    assert Pair(before, now).same_bits
    path = write_report(tmp_path / "new", tmp_path / "out", previous=tmp_path / "old")
    (row,) = (
        line for line in path.read_text().split("## What changed")[1].splitlines() if line.startswith("| mlp solo")
    )
    assert "| 3, 3 |" in " ".join(row.split())


def test_a_seed_with_other_bits_is_seen_whichever_folder_has_them(tmp_path: Path) -> None:
    spec = make_spec("solo")
    cell(tmp_path / "old", "solo", FIVE[:1])
    for name, sha in (("a", "other"), ("b", "end 0")):
        write_run(tmp_path / "new" / name, spec, with_eval(spec, FIVE[0]).model_copy(update={"params_sha256": sha}))
    pair = Pair(*(cells(find_runs(tmp_path / name)[0])[0] for name in ("old", "new")))
    assert not pair.same_bits


@pytest.mark.parametrize("spread", ["base", "values"])
def test_an_interval_is_welchs_whichever_side_scatters_more(spread: str) -> None:
    from scipy import stats

    from bench.report.measures.differences import difference

    wide, narrow = np.linspace(0.5, 1.0, 20), np.linspace(0.89, 0.91, 3)
    base, values = (wide, narrow) if spread == "base" else (narrow, wide)
    found = difference(base.tolist(), values.tolist(), True)
    assert found is not None
    wanted = stats.ttest_ind(values, base, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(wanted.low), pytest.approx(wanted.high))


def judged(root: Path, base: Path, own: list[Path]) -> tuple[Exit, str]:
    out = io.StringIO()
    code = summary.judge(summary.Summary(Console(file=out, width=1000)), root, base, own)
    return code, out.getvalue()


def test_a_healthy_sweep_is_not_blamed_for_what_others_left(tmp_path: Path) -> None:
    base, runs = baselines(tmp_path), tmp_path / "runs"
    cell(runs, "nccl_async", (0.5,))
    for mode, seed in (("cpu_async", 0), ("nccl_sync", 7)):
        spec = make_spec(mode, seed=seed)
        write_run(runs, spec, make_metrics(spec, status="failed", error="boom"))
    (runs / "broken").mkdir()
    (runs / "broken" / "metrics.json").write_text("{")
    own = [put(runs, make_spec("nccl_sync", seed=seed), value) for seed, value in enumerate(FIVE[:3])]
    code, said = judged(runs, base, own[:2])
    assert code is Exit.OK
    assert "boom" not in said
    (line,) = (line for line in said.splitlines() if line.startswith("others"))
    assert re.fullmatch(
        r"others +1 REFUSED, \d FAIL in 4 places; not of this command: python -m bench validate .*", line
    )
    assert line.endswith(f"validate {runs}")


def test_a_sweep_is_blamed_for_its_own(tmp_path: Path) -> None:
    base, runs = baselines(tmp_path), tmp_path / "runs"
    good = put(runs, make_spec("nccl_sync"), 0.97)
    bad = put(runs, make_spec("nccl_async"), 0.5)
    spec = make_spec("cpu_async")
    failed = write_run(runs, spec, make_metrics(spec, status="failed", error="boom"))
    assert judged(runs, base, [good, bad])[0] is Exit.REGRESSION
    assert judged(runs, base, [good, failed])[0] is Exit.FAILED
    code, said = judged(runs, base, [good, bad, failed])
    assert (code, "others" in said) == (Exit.FAILED, False)


def test_a_damaged_baseline_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "it.json").write_text("{")
    runs = tmp_path / "runs"
    own = put(runs, make_spec("nccl_sync"), 0.97)
    put(runs, make_spec("cpu_async"), 0.97)
    code, said = judged(runs, tmp_path / "base", [own])
    assert (code, said.count("REFUSED"), "others" in said) == (Exit.OK, 2, False)


def test_what_is_measured_otherwise_is_another_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report.page, "FIGURES", 0)
    for mode in ("solo", "nccl_sync"):
        spec = make_spec(mode)
        metrics = make_metrics(spec)
        loss = metrics.final.model_copy(update={"eval_metric": "perplexity", "eval": 12.0, "higher_is_better": False})
        write_run(tmp_path / "runs", spec, metrics if mode == "solo" else metrics.model_copy(update={"final": loss}))
    found = cells(find_runs(tmp_path / "runs")[0])
    assert len({one.workload for one in found}) == len({one.name for one in found}) == 2
    text = write_report(tmp_path / "runs", tmp_path / "out").read_text()
    assert re.search(r"^### .*\(.*accuracy\)$", text, re.M)
    assert re.search(r"^### .*\(.*perplexity\)$", text, re.M)


def test_another_limit_on_gradients_is_another_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report.page, "FIGURES", 0)
    for limit, values in ((None, (0.97, 0.90)), (0.001, (0.30, 0.25))):
        for mode, value in zip(("solo", "nccl_sync"), values, strict=True):
            folder = put(tmp_path / "runs" / str(limit), make_spec(mode, config_hash=f"{mode} {limit}"), value)
            (folder / CONFIG).write_text(json.dumps({"train": {"max_grad_norm": limit} if limit else {}}))
    found = cells(find_runs(tmp_path / "runs")[0])
    assert [one.label for one in found] == ["solo", "nccl_sync ×2"] * 2
    text = write_report(tmp_path / "runs", tmp_path / "out").read_text()
    gaps = re.findall(r"\| nccl_sync ×2 .*?([+-]\d+\.\d\d pt)", text.split("\n## Comparison\n")[1].split("\n## ")[0])
    assert gaps == ["-7.00 pt", "-5.00 pt"], "each is held against one device that was trained alike"
    assert len(re.findall(r"^### .*\(gradients up to 0.001\)$", text, re.M)) > 1


@pytest.mark.parametrize("strange", ["1.0", [1.0], 10**400, {}])
def test_a_limit_that_is_none_is_not_one(tmp_path: Path, strange: object) -> None:
    folder = put(tmp_path / "runs", make_spec("solo"), 0.97)
    (folder / CONFIG).write_text(json.dumps({"train": {"max_grad_norm": strange}}))
    (found,) = cells(find_runs(tmp_path / "runs")[0])
    assert found.workload.max_grad_norm is None


def over(root: Path, mode: str, transport: str, config_hash: str) -> None:
    """A run whose collectives go through `transport`."""
    spec = make_spec("nccl_sync", config_hash=config_hash)
    named = {"mode": mode, "backend": mode if mode.startswith("torch") else "nccl", "transport": transport}
    write_run(root / f"{mode}-{transport}", spec, make_metrics(spec, make_records(spec)).model_copy(update=named))


def test_engine_and_transport_are_told_apart_or_that_they_are_not_is_said(tmp_path: Path) -> None:
    over(tmp_path, "nccl_sync", "memory", "a" * 64)
    assert wires(rivals(cells(find_runs(tmp_path)[0]))) == ""
    over(tmp_path, "torch_ddp", "gloo", "b" * 64)
    assert "none of ours does here" in wires(rivals(cells(find_runs(tmp_path)[0])))
    over(tmp_path, "nccl_sync", "gloo", "c" * 64)
    found = cells(find_runs(tmp_path)[0])
    assert wires(rivals(found)) == ""
    labels = {cell.label for cell in found}
    assert labels == {"nccl_sync ×2 over memory", "nccl_sync ×2 over gloo", "torch_ddp ×2"}


def linked(root: Path, links: list[str], config_hash: str) -> None:
    """A predicted run over emulated links."""
    spec = make_spec("nccl_sync", config_hash=config_hash, source="predicted", config={"cluster": {"links": links}})
    folder = write_run(root / config_hash[:1], spec, make_metrics(spec))
    (folder / CONFIG).write_text(json.dumps({"cluster": {"links": links}}))


def test_cells_over_different_links_are_named_by_them(tmp_path: Path) -> None:
    """They differed only by a hash; and one alone had the label of real links."""
    linked(tmp_path, ["ib"], "a" * 64)
    (one,) = cells(find_runs(tmp_path)[0])
    assert one.label == "nccl_sync ×2 over ib (predicted)"
    linked(tmp_path, ["ib", "tree"], "b" * 64)
    linked(tmp_path, [], "c" * 64)
    labels = {cell.label for cell in cells(find_runs(tmp_path)[0])}
    ends = ["", " over ib", " over ib, tree"]
    assert labels == {f"nccl_sync ×2{end} (predicted)" for end in ends}
    linked(tmp_path, ["ib"], "d" * 64)
    labels = {cell.label for cell in cells(find_runs(tmp_path)[0])}
    assert {"nccl_sync ×2 over ib (predicted) #aaaaaa", "nccl_sync ×2 over ib (predicted) #dddddd"} < labels


@pytest.mark.parametrize(
    ("speeds", "text"),
    [
        ((1.0, 0.5), "1/0.5"),
        ((1.0, 0.5) * 4, "1/0.5/1/0.5/1/0.5/1/0.5"),
        ((1.0, 0.5) * 32, "1/0.5 in turn"),
        ((1.0, 0.5, 0.25) * 3 + (1.0,), "1/0.5/0.25 in turn"),
        (tuple(1 - n / 100 for n in range(64)), "1/0.99/0.98/0.97/… (64)"),
        ((1.0,) * 9, "1 in turn"),
    ],
)
def test_many_speeds_are_shortened(speeds: tuple[float, ...], text: str) -> None:
    assert in_turn(speeds) == text
