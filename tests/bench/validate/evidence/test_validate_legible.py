"""Run folders whose files contradict each other: refused by name, and all other cells are judged as ever."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import report
from bench.base.exitcodes import Exit
from bench.command.printed import summary
from bench.report.measures.differences import difference
from bench.results.cells import Sample, cells
from bench.results.runfolder import CONFIG, EVENTS, METRICS, find_runs
from bench.validate import CHECKS, Terms, Verdict, judge
from bench.validate.revisions.revision import write_proposals
from tests.bench.references import TODAY
from tests.bench.streams import make_spec
from tests.bench.validate.sketched import sketch
from tests.bench.validate.told import baseline, write
from tests.slow import every

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return baseline(tmp_path_factory.mktemp("base"))


def edited(file: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    """A JSON file of the folder, changed."""

    def damage(folder: Path) -> None:
        body = json.loads((folder / file).read_text())
        change(body)
        (folder / file).write_text(json.dumps(body))

    return damage


def events(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Damage:
    """The records, changed."""

    def damage(folder: Path) -> None:
        lines = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
        (folder / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in change(lines)))

    return damage


def first(kind: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    """The first record of a kind, changed."""

    def damaged(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        change(next(line for line in lines if line["type"] == kind))
        return lines

    return events(damaged)


def begun(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those after the last rank was ready."""
    return lines[1 + max(n for n, line in enumerate(lines) if line["type"] == "Ready") :]


def ranks(count: int) -> Damage:
    return edited(METRICS, lambda body: body.update(world_size=count))


def alone(folder: Path) -> None:
    """One rank in the result, by all that it says."""

    def change(body: dict[str, Any]) -> None:
        body.update(world_size=1, breakdown=body["breakdown"][:1], elche=None)
        for row in body["ledger"]["epochs"]:
            row.update(by_rank=[1])

    edited(METRICS, change)(folder)


def twice(file: str, key: str) -> Damage:
    """A key said once more, before its own place: programs take the last, and people the first."""

    def damage(folder: Path) -> None:
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace("{", f'{{"{key}": 0.999, ', 1))

    return damage


DAMAGES: dict[str, tuple[str, Damage, str]] = {
    "a field twice": ("nccl_sync", twice(METRICS, "status"), "metrics.json: 'status' is said twice"),
    "an engine that is a list": (
        "nccl_sync",
        edited(METRICS, lambda body: body.update(engine=[])),
        "metrics.json: engine: Input should be a valid string",
    ),
    "a setting twice": ("nccl_sync", twice(CONFIG, "averaging"), "config.json: 'averaging' is said twice"),
    "no first lines": ("nccl_cadence", events(begun), "records no rank as ready"),
    "one first line less": ("nccl_cadence", events(lambda lines: lines[1:]), "lines are missing"),
    "most lines missing": (
        "nccl_sync",
        events(
            lambda lines: [*lines[:9], *(one for one in lines[9:] if one["type"] != "Progress" or one["epoch"] > 1)]
        ),
        "samples are reported as trained",
    ),
    "empty epochs": ("nccl_sync", first("Ready", lambda one: one.update(samples=0)), "3 epochs of 0"),
    "a rank more": ("nccl_cadence", ranks(3), "2 ranks, but world_size is 3"),
    "a rank less": ("nccl_sync", ranks(1), "2 ranks, but world_size is 1"),
    "a rank less everywhere": ("nccl_sync", alone, "records ranks 0, 1 as ready, but world_size is 1"),
    "immensely many ranks": (
        "nccl_sync",
        ranks(2_000_000_000),
        "world_size: Input should be less than or equal to 4096",
    ),
    "no ranks": ("nccl_sync", ranks(0), "world_size: Input should be greater than or equal to 1"),
    "a strange rank": ("nccl_sync", first("Progress", lambda one: one.update(rank=7)), "has records of ranks 7"),
    "no training settings": (
        "nccl_cadence",
        edited(CONFIG, lambda body: body.update(train=None)),
        "config.json: not the configuration of a run: Expected `object`, got `null` - at `$.train`",
    ),
    "a weight of letters": (
        "nccl_cadence",
        edited(CONFIG, lambda body: body["averaging"].update(gamma="1.0")),
        "Expected `float`, got `str` - at `$.averaging.gamma`",
    ),
    "sketches of unequal length": (
        "nccl_cadence",
        first("Averaged", lambda one: one.update(sketch_average=sketch(1.0, 2.0))),
        "sketches have 2 groups, but 3 are named",
    ),
    "a step's sketch of unequal length": (
        "nccl_sync",
        first("Progress", lambda one: one["exchanged"][0].update(before=sketch(1.0))),
        "sketches have 1 groups, but 3 are named",
    ),
    "a sketch that is none": (
        "nccl_cadence",
        first("Averaged", lambda one: one.update(sketch_after="%%%")),
        "'%%%' is no sketch",
    ),
    "an immense result": (
        "nccl_cadence",
        edited(METRICS, lambda body: body["final"].update(eval=1e308)),
        "final.eval is beyond 1e+100, which cannot be a measurement",
    ),
    "an immense count": (
        "nccl_cadence",
        edited(METRICS, lambda body: body["elche"]["plans"][0].update(counts=[1, 10**400])),
        "elche.plans[0].counts[1] is beyond 1e+100, which cannot be a measurement",
    ),
    "a speed below zero": (
        "nccl_cadence",
        edited(METRICS, lambda body: body["throughput"].update(samples_per_s=-1.0)),
        "throughput.samples_per_s is -1, which cannot be a speed",
    ),
    "a breakdown of one rank of two": (
        "nccl_cadence",
        edited(METRICS, lambda body: body["breakdown"].pop()),
        "breakdown: 1 rank, but world_size is 2",
    ),
    "a window of more ranks than there are": (
        "nccl_cadence",
        edited(METRICS, lambda body: body["elche"]["windows"][0]["steps"].append(1)),
        "elche.windows[0].steps: 3 ranks, but world_size is 2",
    ),
    "no rate": ("nccl_cadence", edited(METRICS, lambda body: body.update(lr_scale=0.0)), "cannot train"),
    "a weight that overflows": (
        "nccl_cadence",
        edited(CONFIG, lambda body: body["averaging"].update(gamma=1e9)),
        "contradict each other: OverflowError",
    ),
}


@pytest.mark.parametrize("damage", every(2, DAMAGES))
def test_what_contradicts_itself_is_refused_and_the_others_are_judged(tmp_path: Path, base: Path, damage: str) -> None:
    mode, spoil, reason = DAMAGES[damage]
    write(tmp_path, make_spec("cpu_async"))
    folders = [write(tmp_path, make_spec(mode, seed=seed)) for seed in range(2)]
    sound = [v for v in judge([tmp_path], base, Terms(today=TODAY)).verdicts if "cpu_async" in v.cell]
    for folder in folders:
        spoil(folder)
    judgement = judge([tmp_path], base, Terms(today=TODAY))
    (*refused,) = (v for v in judgement.verdicts if v.check == "readable")
    assert {v.name for v in refused} == {"REFUSED"}
    assert all(any(str(folder) in v.line for v in refused) for folder in folders)
    assert all(reason in v.line for v in refused), refused
    assert [v for v in judgement.verdicts if v.check != "readable"] == sound
    assert judgement.code is Exit.REFUSED
    printed = summary.Summary(Console(file=io.StringIO(), width=500))
    own = [run.path for run in find_runs(tmp_path)[0] if "cpu_async" in run.path.parts]
    assert summary.judge(printed, tmp_path, base, own) is Exit.OK


@pytest.mark.parametrize(
    "damage",
    [
        "a rank more",
        "an engine that is a list",
        "no training settings",
        "an immense result",
        "a breakdown of one rank of two",
    ],
)
def test_the_report_names_them_as_well(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report.page, "FIGURES", 0)
    mode, spoil, reason = DAMAGES[damage]
    for kind in (mode, "solo"):
        write(tmp_path / "runs", make_spec(kind))
    spoil(next((tmp_path / "runs" / "mlp" / mode).iterdir()))
    text = report.write_report(tmp_path / "runs", tmp_path / "out", previous=tmp_path / "runs").read_text()
    assert reason.partition(" - ")[0].partition("`")[0] in text
    assert "**2 folders could not be read.**" in text
    assert "of the earlier tree: " in text


def test_sound_seeds_of_the_same_cell_are_judged(tmp_path: Path, base: Path) -> None:
    folders = [write(tmp_path, make_spec("nccl_cadence", seed=seed)) for seed in range(4)]
    DAMAGES["no first lines"][1](folders[2])
    found = {v.check: v for v in judge([tmp_path], base, Terms(today=TODAY)).verdicts}
    assert folders[2].name in found["readable"].line
    assert "(n=3)" in found["quality"].line


def test_what_no_check_is_prepared_for_refuses_one_cell(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, make_spec("nccl_sync"))
    folders = [write(tmp_path, make_spec("cpu_async", seed=seed)) for seed in range(2)]

    def check(case: Any) -> Verdict | None:
        if any(run.path == folders[1] for run in case.cell.runs):
            raise KeyError("of\nours")
        return None

    monkeypatch.setitem(CHECKS, "unprepared", check)
    verdicts = judge([tmp_path], base, Terms(today=TODAY)).verdicts
    (refused,) = (v for v in verdicts if "cpu_async" in v.cell)
    assert (refused.name, refused.check) == ("REFUSED", "readable")
    assert str(folders[1]) in refused.line
    assert str(folders[0]) not in refused.line
    assert "KeyError" in refused.line
    assert "\n" not in refused.line
    assert any(v.check == "quality" and "nccl_sync" in v.cell for v in verdicts)


def test_no_baseline_is_made_of_them(tmp_path: Path) -> None:
    folders = [write(tmp_path / "runs", make_spec("solo", seed=seed)) for seed in range(5)]
    DAMAGES["no first lines"][1](folders[3])
    with pytest.raises(ValueError, match=f"{folders[3].name}/events.jsonl: records no rank"):
        write_proposals(tmp_path / "runs", tmp_path / "out", TODAY)


def test_immense_values_are_no_measurement() -> None:
    assert Sample.of([1e308, 1e308, 0.5]) == Sample(1, 0.5, None)
    assert difference([0.9, 0.91], [1e308, 1e308], True) is None


def test_a_tree_read_twice_is_read_once(tmp_path: Path, base: Path) -> None:
    runs = tmp_path / "runs"
    write(runs / "ci", make_spec("nccl_sync"))
    (runs / "ci" / "bad").mkdir()
    (runs / "ci" / "bad" / METRICS).write_text("{")
    (tmp_path / "link").symlink_to(runs / "ci")
    once = judge([runs], base, Terms(today=TODAY)).verdicts
    assert judge([runs, runs / "ci"], base, Terms(today=TODAY)).verdicts == once
    thrice = judge([runs / "ci", tmp_path / "link", runs], base, Terms(today=TODAY)).verdicts
    assert not [v for v in thrice if v.check == "determinism"], "a folder is not compared with itself"
    assert len(cells(find_runs(runs)[0])[0].runs) == 1
