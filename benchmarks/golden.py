"""Golden digests of outputs that must not change while code is moved, renamed or rewritten without a change of
behaviour.

    make golden                        # compare with benchmarks/golden/digests.json; exit code 1 names what differs
    make golden ARGS=--write           # after a change that is meant: write the digests anew
    make golden ARGS='--part replay'   # one part: configurations, replay, reports or parameters
    make golden ARGS=--record          # train the recorded runs anew, then --write

Four parts. `configurations`: the `config_hash` of command lines. `replay`: recorded runs of every policy, fed to the core.
`reports`: the text and tables of reports on the recorded runs. `parameters`: `params_sha256` of synchronous training. Bits
depend on the kind of machine, so that parameters have digests for each kind.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from bench import models
from bench.base import environment
from bench.config.compose import composing
from bench.config.composed import typed
from bench.config.config_checks import Machine
from bench.config.plan import plan
from bench.models.data import DATA
from bench.report import write_report
from bench.results.runfolder import CONFIG, EVENTS, METRICS, find_runs
from bench.results.schema import Metrics
from bench.runner.replay import Unfit, deviation
from benchmarks.frame import bench, options, run_command

FOLDER = Path(__file__).resolve().parent / "golden"
DIGESTS, RUNS = FOLDER / "digests.json", FOLDER / "recorded"
BASELINES = FOLDER.parents[1] / "baselines"
Digests = dict[str, str]

SYNCHRONOUS = (
    "nccl_sync",
    "cpu_sync",
    "graph_sync",
    "zero1",
    "zero2",
    "zero3",
    "torch_ddp",
    "torch_fsdp",
    "torch_zero1",
)
MODELS = ("mlp", "lenet", "resnet_graph")
SIZES = (1, 2, 4)
SHORT = ("data.name=digits", "train.epochs=1")
AGAIN = 5
"""Most runs until a cell of graph mode has even shares."""
QUIET = ("report=false", "validate=false")
WINDOWED = tuple(f"{backend}_{policy}" for backend in ("nccl", "cpu") for policy in ("sync", "cadence", "async"))


def configurations() -> Digests:
    """Return command line -> `config_hash`, of 56 command lines over all models, modes and groups of settings."""
    machine = Machine(cores=2, gpus=0)
    found: Digests = {}
    with composing() as compose:
        for words in _command_lines():
            config = typed(compose(list(words)))
            found[" ".join(words)] = plan(config, models.load(config.model.name), DATA, machine).spec.config_hash
    return found


def _command_lines() -> Iterator[tuple[str, ...]]:
    modes = ("solo", *WINDOWED, *SYNCHRONOUS[2:], "graph_cadence", "torch_local_sgd")
    for mode in modes:
        yield f"mode={mode}", "model=mlp"
    for model in models.MODELS:
        yield f"model={model}", "mode=nccl_cadence"
        yield f"model={model}", "mode=solo", "recipe=published"
    for words in (
        "train.epochs=3", "train.batch_size=24", "train.global_batch_size=32", "train.lr=0.02", "train.lr_scale_ratio=0.5",
        "train.max_grad_norm=1.0", "world_size=4", "data.name=synthetic", "loader.prefetch=3", "cluster.speeds=[1.0,0.4]",
        "cluster.faults=[1@40:crash]", "cluster.transport=gloo", "cluster.tolerate_loss=false", "averaging.outer=momentum",
        "averaging.wire=float32", "checkpoint.every=1", "policy.anchor=12", "profile.steps=5", "seed=7",
    ):  # fmt: skip
        yield "model=mlp", "mode=cpu_cadence", words


def replay() -> Digests:
    """Return recorded run -> how its replay ended: how many records the core gave alike, or the first unlike one."""
    found: Digests = {}
    for run in find_runs(RUNS)[0]:
        try:
            checked, unlike = deviation(run)
        except Unfit as error:
            checked, unlike = 0, str(error)
        found[_name(run.path)] = unlike or f"{checked} records equal"
    return found


def reports() -> Digests:
    """Return report -> sha256 of its text and tables: one of each recorded run, one of all, and one against another tree."""
    found: Digests = {}
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        for run in find_runs(RUNS)[0]:
            found[_name(run.path)] = _report(run.path, Path(scratch) / "one")
        found["all"] = _report(RUNS, Path(scratch) / "all")
        found["all with verdicts"] = _report(RUNS, Path(scratch) / "judged", baseline=BASELINES)
        found["mlp since lenet"] = _report(RUNS / "mlp", Path(scratch) / "since", previous=RUNS / "lenet")
    return found


def _report(root: Path, out: Path, **beside: Path) -> str:
    shutil.rmtree(out, ignore_errors=True)
    write_report(root, out, **beside)  # type: ignore[arg-type]
    digest = hashlib.sha256()
    for path in sorted([*out.glob("*.md"), *out.glob("*.csv")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def parameters() -> Digests:
    """Return model, mode and ranks -> `params_sha256` after an epoch of digits, of every synchronous mode. Minutes."""
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        sizes = ",".join(map(str, SIZES))
        for modes, words in ((("solo",), ()), (SYNCHRONOUS, (f"world_size={sizes}",))):
            _train(f"model={','.join(MODELS)}", f"mode={','.join(modes)}", *words, *SHORT, output=Path(scratch))
        found = {_name(run.path): run.metrics for run in find_runs(Path(scratch))[0]}
        for name in (name for name in found if "/graph_sync/" in name):
            found[name] = _with_shares_of(found[name.replace("graph_sync", "nccl_sync")], found[name], Path(scratch))
        return {name: str(metrics.params_sha256) for name, metrics in found.items()}


def _with_shares_of(even: Metrics, measured: Metrics, scratch: Path) -> Metrics:
    """Return a run of graph mode whose replicas had the same shares of batches as ranks do: it was, or is trained again, as
    it divides batches by speed. On a busy machine one replica may seem slower for a while. Raises RuntimeError if it never
    comes out even."""
    for again in range(AGAIN):
        if _shares(measured) == _shares(even):
            return measured
        print(f"{measured.model} {measured.mode} w{measured.world_size}: shares {_shares(measured)}, trained again")
        cell = f"model={measured.model}", f"mode={measured.mode}", f"world_size={measured.world_size}"
        _train(*cell, *SHORT, output=(place := scratch / f"again-{again}"))
        (run,) = find_runs(place)[0]
        measured = run.metrics
    raise RuntimeError(
        f"{measured.model} {measured.mode}: {AGAIN} runs whose shares follow speed; is the machine idle?"
    )


def _shares(metrics: Metrics) -> list[list[int]]:
    """Return the samples of each rank, by epoch."""
    return [epoch.by_rank for epoch in metrics.ledger.epochs] if metrics.ledger is not None else []


def record() -> None:
    """Train the recorded runs anew: every policy and backend on `mlp`, three modes on `lenet`, one rank lost in one."""
    shutil.rmtree(RUNS, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        short = ("data.name=digits", "train.batch_size=64", "train.epochs=4")
        _train("model=mlp", f"mode=solo,{','.join(WINDOWED)}", *short, output=Path(scratch))
        _train("model=lenet", "mode=solo,nccl_cadence", "cluster.speeds=[1.0,0.5]", *short, output=Path(scratch))
        _train("model=lenet", "mode=cpu_async", "cluster.faults=[1@30:crash]", *short, output=Path(scratch))
        for run in find_runs(Path(scratch))[0]:
            place = RUNS / run.path.relative_to(scratch)
            place.mkdir(parents=True)
            for name in (METRICS, CONFIG, EVENTS):
                shutil.copy(run.path / name, place / name)


def _train(*words: str, output: Path) -> None:
    bench("-m", *words, f"output={output}", *QUIET, timeout=3600)


def _name(folder: Path) -> str:
    """`<model>/<mode>/w<ranks>` of a run folder."""
    return "/".join((*folder.parts[-3:-1], folder.name.partition("-")[0]))


PARTS: dict[str, Callable[[], Digests]] = {
    "configurations": configurations,
    "replay": replay,
    "reports": reports,
    "parameters": parameters,
}


def kind_of_machine() -> str:
    """Return what the bits of training depend on: processor, its vector instructions, and version of torch."""
    about = environment.describe()
    return f"{about['cpu']}, {about['simd']}, torch {torch.__version__}"


def differences(committed: Digests, found: Digests) -> list[str]:
    """Return one line for each digest that is not as committed, that is new or that is gone."""
    names = dict.fromkeys(itertools.chain(committed, found))
    pairs = ((name, committed.get(name, "nothing"), found.get(name, "nothing")) for name in names)
    return [f"{name}: {before[:60]} committed, {now[:60]} now" for name, before, now in pairs if before != now]


def main() -> int:
    """Run the command; its exit code."""
    parser = options(__doc__, "write the digests instead of comparing")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--record", action="store_true", help="train the recorded runs anew first")
    asked = parser.parse_args()
    if asked.record:
        record()
    committed = json.loads(DIGESTS.read_text()) if DIGESTS.is_file() else {}
    unlike = 0
    for part in asked.part or PARTS:
        key = f"{part} on {kind_of_machine()}" if part == "parameters" else part
        found = PARTS[part]()
        if key not in committed and not asked.write:
            print(f"{key}: {len(found)} digests, none committed to compare with: --write keeps these")
            continue
        lines = differences(committed.get(key, {}), found)
        unlike += len(lines)
        print(f"{key}: {len(found)} digests, {len(lines)} not as committed")
        print(*([] if asked.write else [f"  {line}" for line in lines]), sep="\n", flush=True)
        committed[key] = found
    if asked.write:
        DIGESTS.parent.mkdir(exist_ok=True)
        DIGESTS.write_text(json.dumps(committed, indent=1) + "\n", encoding="utf-8")
        return 0
    return int(unlike > 0)


if __name__ == "__main__":
    run_command(main)
