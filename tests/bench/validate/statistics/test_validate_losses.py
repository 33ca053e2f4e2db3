"""Final losses: what they may lose, and against whom they are judged; pairs of equal seeds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.models import MODELS, load
from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.results.schema import Epoch, Metrics
from bench.validate import Verdict
from bench.validate.baselines import folder
from bench.validate.checks import pairs
from bench.validate.checks.pairs import SHARED
from bench.validate.revisions.revision import accept, write_proposals
from bench.validate.statistics.losses import loss_floor, loss_metrics
from bench.validate.verdicts.findings import Case
from tests.bench.references import FIVE, TODAY, TWENTY, baselines, one, verdicts, with_eval
from tests.bench.streams import make_metrics, make_spec, write_run

LOSSES = [1.0 + 0.01 * seed for seed in range(20)]


def rows(*points: tuple[float, float]) -> list[Epoch]:
    """Epochs with (metric, test loss); the training loss is half of that."""
    first = make_metrics(make_spec("solo")).epochs[0]
    return [
        first.model_copy(update={"epoch": n, "eval": quality, "eval_loss": loss, "train_loss": loss / 2})
        for n, (quality, loss) in enumerate(points)
    ]


def course(*points: tuple[float, float]) -> list[Metrics]:
    return [make_metrics(make_spec("solo", seed=seed), epochs=rows(*points)) for seed in range(3)]


@pytest.mark.parametrize(
    ("points", "wanted"),
    [
        (((0.5, 2.0), (0.96, 0.5), (0.978, 0.3), (0.98, 0.28)), 0.22 / 0.02 * 0.005),  # the first worse by 0.005
        (((0.978, 0.3), (0.98, 0.28)), 0.02 / 0.002 * 0.005),  # none is: the worst
        (((0.98, 0.3), (0.98, 0.28)), None),
        (((0.9799, 0.9), (0.98, 0.28)), None),  # hardly worse: the margin would be 31, of a loss of 0.28
        (((0.9, 0.2), (0.98, 0.28)), None),
        (((0.98, 0.28),), None),
    ],
)
def test_the_floor_of_a_loss_goes_with_that_of_the_metric(
    points: tuple[tuple[float, float], ...], wanted: float | None
) -> None:
    found = loss_floor(course(*points), "eval_loss", 0.005)
    assert (found and found[0]) == (wanted and pytest.approx(wanted))
    half = loss_floor(course(*points), "train_loss", 0.005)
    assert (half and half[0]) == (wanted and pytest.approx(wanted / 2))


def test_a_loss_that_is_the_metric_is_not_judged_twice() -> None:
    runs = [m.model_copy(update={"epochs": rows((0.3, 0.3))}) for m in course((0.3, 0.3))]
    runs = [m.model_copy(update={"final": m.final.model_copy(update={"eval": 0.3})}) for m in runs]
    assert set(loss_metrics(runs, 0.005)) == {"train_loss"}
    lost = [runs[0], runs[1].model_copy(update={"final": runs[1].final.model_copy(update={"train_loss": None})})]
    assert loss_metrics(lost, 0.005) == {}


def write(root: Path, mode: str, seeds: int, worse: float = 1.0, first: float = 1.0, **changes: object) -> Path:
    """Runs whose final losses are those of `LOSSES` times `worse`, and of the first epoch times `first`."""
    for seed in range(seeds):
        spec = make_spec(mode, seed=seed, **changes)
        metrics = with_eval(spec, TWENTY[seed])
        epochs = [row.model_copy(update={"train_loss": 5.0 * first, "eval_loss": 5.0}) for row in metrics.epochs]
        epochs[-1] = epochs[-1].model_copy(update={"eval_loss": LOSSES[seed] * worse, "eval": TWENTY[seed]})
        final = metrics.final.model_copy(update={"train_loss": LOSSES[seed] * worse})
        write_run(root, spec, metrics.model_copy(update={"epochs": epochs, "final": final}))
    return root


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("losses")
    write_proposals(write(folder / "runs", "solo", 20), folder / "proposals", TODAY)
    accept(folder / "proposals", folder / "base")
    return folder / "base"


def test_losses_are_judged_against_solo_at_the_same_global_batch(tmp_path: Path, base: Path) -> None:
    runs = write(tmp_path / "same", "nccl_sync", 8, batch_size=16)
    found = {check: v.name for (_, check), v in verdicts(runs, base).items()}
    assert {found[name] for name in ("quality", "eval_loss", "train_loss", "pairs")} == {"PASS"}
    worse = write(tmp_path / "worse", "nccl_sync", 8, worse=5.0, batch_size=16)
    assert {one(worse, base, name).name for name in ("eval_loss", "train_loss")} == {"FAIL"}
    assert one(worse, base, "quality").name == "PASS", "which a metric does not see"


@pytest.mark.parametrize(("mode", "size"), [("nccl_sync", 32), ("nccl_cadence", 32), ("cpu_async", 32)])
def test_of_another_global_batch_losses_are_only_mentioned(tmp_path: Path, base: Path, mode: str, size: int) -> None:
    found = verdicts(write(tmp_path, mode, 3, worse=1.5, batch_size=size), base)
    assert not {"eval_loss", "train_loss", "pairs"} & {check for _, check in found}
    (quality,) = (v for (_, check), v in found.items() if check == "quality")
    assert "training loss 1.5150" in quality.line
    assert "not judged as the global batches differ" in quality.line


def test_losses_of_a_cells_own_baseline_are_judged(tmp_path: Path) -> None:
    own = baselines(tmp_path, FIVE, mode="nccl_cadence")
    runs = write(tmp_path / "x", "nccl_cadence", 5, worse=3.0)
    assert one(runs, own, "train_loss").name == "FAIL"


def test_a_solo_run_that_is_refused_is_nobodys_partner(tmp_path: Path, base: Path) -> None:
    """Its loss was edited, and the sound runs of the other mode failed."""
    write(tmp_path / "runs", "nccl_sync", 1, batch_size=16)
    write(tmp_path / "runs", "solo", 2)
    (edited,) = tmp_path.rglob("w1-s0-*/metrics.json")
    body = json.loads(edited.read_text())
    body["epochs"][0]["train_loss"] *= 2
    edited.write_text(json.dumps(body))
    assert one(tmp_path / "runs", base, "pairs").name == "FAIL", "a sound run of another loss"
    edited.write_text(json.dumps(body | {"throughput": body["throughput"] | {"samples_per_s": -1.0}}))
    assert one(tmp_path / "runs", base, "readable").name == "REFUSED"
    assert one(tmp_path / "runs", base, "pairs").name == "PASS", "by the baseline's losses"


def test_pairs_need_no_statistics(tmp_path: Path, base: Path) -> None:
    assert one(write(tmp_path / "a", "nccl_sync", 1, first=1 + 9e-6, batch_size=16), base, "pairs").name == "PASS"
    verdict = one(write(tmp_path / "b", "nccl_sync", 1, first=1.001, batch_size=16), base, "pairs")
    assert (verdict.name, "seed 0: 5.005, solo 5" in verdict.line) == ("FAIL", True)
    with pytest.raises(ValueError, match="expected 1, got 0"):
        one(write(tmp_path / "c", "cpu_sync", 1, first=2.0, batch_size=16), base, "pairs")


def on(simd: str, root: Path, mode: str, seeds: int, first: float = 1.0, **changes: object) -> Path:
    """Runs of `write` on a processor with these instructions."""
    write(root, mode, seeds, first=first, **changes)
    for path in root.rglob("metrics.json"):
        metrics = json.loads(path.read_text())
        path.write_text(json.dumps(metrics | {"env": metrics["env"] | {"simd": simd}}))
    return root


def test_another_processor_rounds_otherwise_and_solo_beside_is_held_to_the_rounding(tmp_path: Path) -> None:
    """A baseline made with AVX-512 failed every pair of a machine that has none."""
    write_proposals(on("avx512f", tmp_path / "runs", "solo", 5), tmp_path / "proposals", TODAY)
    accept(tmp_path / "proposals", tmp_path / "base")

    def pair(simd: str, name: str, first: float) -> Verdict:
        root = on(simd, tmp_path / name, "nccl_sync", 1, first, batch_size=16)
        return one(root, tmp_path / "base", "pairs")

    assert pair("avx512f", "same", 1.001).name == "FAIL"
    other = pair("avx2", "other", 1.005)
    assert (other.name, "another kind of processor" in other.line) == ("PASS", True)
    assert pair("avx2", "far", 1.06).name == "FAIL"
    on("avx2", tmp_path / "beside", "nccl_sync", 1, 1.005, batch_size=16)
    on("avx2", tmp_path / "beside", "solo", 1)
    assert one(tmp_path / "beside", tmp_path / "base", "pairs").name == "FAIL"


@pytest.mark.parametrize(
    ("changes", "train", "name"),
    [
        ({}, {}, "FAIL"),
        ({}, {"precision": "fp32"}, "FAIL"),
        ({}, {"precision": "bf16"}, "PASS"),
        ({"devices": ["cuda:0", "cuda:1"]}, {}, "PASS"),
        ({"samples": 500 * 32 * 3}, {}, "FAIL"),
        ({"samples": 501 * 32 * 3}, {}, "PASS"),
    ],
)
def test_coarse_and_amplified_roundings_move_the_losses_of_pairs_further(
    tmp_path: Path, base: Path, changes: dict[str, Any], train: dict[str, str], name: str
) -> None:
    root = write(tmp_path / "runs", "nccl_sync", 1, first=1.001, batch_size=16)
    ((run,), _) = find_runs(root)
    (found,) = cells([replace(run, metrics=run.metrics.model_copy(update=changes), config={"train": train})])
    verdict = pairs.check(Case(found, folder.load(base).match(found)))
    assert verdict is not None
    assert verdict.name == name


def test_the_models_whose_shares_are_the_batch_have_no_layer_that_looks_at_it() -> None:
    import torch
    from torch import nn

    from ddp.replica.replica import Replica  # noqa: F401  the engine's own task needs torch

    looking = (nn.modules.batchnorm._BatchNorm, nn.Dropout, nn.modules.dropout._DropoutNd)
    for name in MODELS:
        task = load(name).task(load(name).recipes["quick"], "data")
        torch.manual_seed(0)
        modules = list(task.model().modules())
        drawing = any(isinstance(m, looking) or getattr(m, "dropout", 0.0) for m in modules)
        assert (name in SHARED) <= (not drawing), name


def test_a_baseline_without_losses_says_so(tmp_path: Path, base: Path) -> None:
    """Those from before they were kept."""
    from bench.validate.baselines.reference import digest

    (path,) = base.rglob("*.json")
    body = json.loads(path.read_text())
    for name in ("eval_loss", "train_loss"):
        del body["metrics"][name]
    del body["first_losses"], body["diverged"]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / path.name).write_text(json.dumps(body | {"digest": digest(body)}))
    found = verdicts(write(tmp_path / "runs", "nccl_sync", 3, batch_size=16), tmp_path / "old")
    assert not {"eval_loss", "train_loss", "pairs"} & {check for _, check in found}
    assert "losses are not judged, as the baseline has none" in found["mlp nccl_sync ×2", "quality"].line
