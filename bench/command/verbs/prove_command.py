"""The verb `prove`: compares a few steps of a model in each mode with plain PyTorch on one device; writes a table and
JSON."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from tabulate import tabulate

from bench.base.exitcodes import Exit
from bench.base.usage import UsageError, usage, writable, writing
from bench.base.writing import write_json
from bench.config.compose import compose
from bench.config.composed import typed
from bench.config.config import Config
from bench.config.flags import read
from bench.config.hydra_errors import complain
from ddp.core.settings.steps import StepSettings
from ddp.engine.modes import engine_of

if TYPE_CHECKING:
    from bench.config.plan import RunPlan
    from bench.prove.proof import Proof
    from bench.prove.whole_batch import WholeBatch

WAYS = ("mode", "engine", "policy", "backend", "experiment")
"""Groups that choose a mode; if the command line has none, all modes are proved that can be."""
MOST_STEPS = 100


@dataclass
class ProofOrder:
    """The plans that a command line asks to prove, by model, in their order."""

    plans: dict[tuple[str, str, StepSettings], list[RunPlan]] = field(default_factory=dict)

    def job(self, composed: DictConfig) -> None:
        """Note the plan of one mode; Hydra calls this. Raise UsageError."""
        from bench.command.cell_plan import make_plan
        from bench.prove.provable import refuse_unproved, refuse_unproved_job

        try:
            config = typed(composed)
        except (OmegaConfBaseException, ValueError) as error:
            raise UsageError(complain(error)) from error
        with usage():
            refuse_unproved(config.train.step)
        plan = make_plan(_quiet(config))
        with usage():
            refuse_unproved_job(plan.job)
        known = self.plans.setdefault((plan.spec.model, plan.spec.data, plan.job.step), [])
        size = (plan.spec.mode, plan.spec.world_size)
        same = next((other.spec for other in known if (other.spec.mode, other.spec.world_size) == size), None)
        if same is None:
            known.append(plan)
        elif (same.seed, same.config_hash) != (plan.spec.seed, plan.spec.config_hash):
            which = f"{size[0]} on {size[1]} ranks" if size[1] > 1 else size[0]
            raise UsageError(f"{which} is proved once: give the seed and each other setting one value")


@dataclass
class Proofs:
    """Results of checks, each with the name of its model."""

    modes: list[tuple[str, Proof]] = field(default_factory=list)
    wholes: list[tuple[str, WholeBatch]] = field(default_factory=list)
    """Comparisons with the whole batch on one device."""


def _quiet(config: Config) -> Config:
    """Return the configuration without settings that play no part in a proof, and with one rank for engines that have
    one."""
    size = 1 if engine_of(config.engine.name).one_rank else config.world_size
    return replace(config, world_size=size, audit=False, checkpoint=replace(config.checkpoint, every=0))


def prove(arguments: list[str], parser: argparse.ArgumentParser, verbs: tuple[str, ...]) -> Exit:
    """Prove the modes that `arguments` select: options of `parser`, then overrides.

    Return exit code 1 if a mode differs from PyTorch, 3 if a mode could not be compared. Raise UsageError for settings
    that cannot be proved."""
    parser.add_argument("--steps", type=int, default=3, help="steps, or averages, that are compared (default: 3)")
    parser.add_argument("--batch", type=int, default=4, help="samples of a micro-batch of one rank (default: 4)")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write all differences by step")
    options, words = parser.parse_known_args(arguments)
    if not 1 <= options.steps <= MOST_STEPS or not options.batch >= 2:
        raise UsageError(f"--steps must be from 1 to {MOST_STEPS}, and --batch 2 or more")
    proofs = Proofs()
    flags, _ = read(words, ("--steps", "--batch", "--json"))
    if paths := [word for word in flags.overrides if "=" not in word]:
        if len(words) > 1:
            raise UsageError("a run of a script is proved by itself: give its folder alone")
        _prove_run(paths[0], options, proofs)
    else:
        _prove_models(words, verbs, options, proofs)
    print(*table(proofs), sep="\n")
    if options.json is not None:
        _write(options, proofs)
    verdicts = {proof.verdict for _, proof in proofs.modes}
    return Exit.REGRESSION if "different" in verdicts else Exit.INCONCLUSIVE if "not proved" in verdicts else Exit.OK


def _prove_run(path: str, options: argparse.Namespace, proofs: Proofs) -> None:
    """Add what comes out for the mode of a run of a script, through that script. Raise UsageError."""
    from bench.command.verbs.rerun import run_in
    from bench.runner.script_again import ProofSize, prove_script

    if Path(path).is_file():
        raise UsageError(f"{path} is a file: prove a run that it made, by the folder of the run; or model={path}")
    with usage(), tempfile.TemporaryDirectory(prefix="bench-prove-", ignore_cleanup_errors=True) as folder:
        run = run_in(Path(path))
        if not run.config.get("script"):
            raise UsageError(f"{path}: no script made it: give model={run.metrics.model} mode={run.metrics.mode}")
        report = prove_script(run, Path(folder), ProofSize(options.steps, options.batch))
    proofs.modes.append((run.metrics.model, report.proof))
    proofs.wholes += [] if report.whole is None else [(run.metrics.model, report.whole)]


def _prove_models(words: list[str], verbs: tuple[str, ...], options: argparse.Namespace, proofs: Proofs) -> None:
    """Add what comes out for each model that the overrides choose. Raise UsageError."""
    from bench.prove.provable import provable_modes

    order = ProofOrder()
    if not any(word.lstrip("+").partition("=")[0] in WAYS for word in words):
        words = [*words, f"mode={','.join(provable_modes())}"]
    sweep = any("," in word.partition("=")[2] for word in words) and not {"-m", "--multirun"} & set(words)
    compose((["-m"] if sweep else []) + words, verbs, order.job, lambda line: None, planning=True)
    for (model, _, how), plans in order.plans.items():
        named = ", ".join([model, *(f"{key} {value}" for key, value in how.given.items())])
        with usage():
            _prove(named, plans, options, proofs)


def _prove(model: str, plans: list[RunPlan], options: argparse.Namespace, proofs: Proofs) -> None:
    """Append the results of one model, in the order of its plans."""
    from bench.prove.proof import prove
    from bench.prove.provable import Way
    from bench.prove.whole_batch import whole

    first = plans[0]
    ways = [
        Way(plan.spec.mode, plan.spec.engine, plan.spec.backend, plan.job.policy, plan.spec.world_size)
        for plan in plans
    ]
    task, seed, how = first.job.task, first.spec.seed, first.job.step
    results = {
        (proof.mode, proof.ranks): proof
        for proof in prove(task, ways, options.steps, options.batch, seed, first.job.preload, how)
    }
    proofs.modes += [(model, results[way.mode, way.ranks]) for way in ways]
    for ranks in sorted({way.ranks for way in ways} - {1}):
        proofs.wholes.append((model, whole(task, ranks, options.steps, options.batch, seed, how)))


def _write(options: argparse.Namespace, proofs: Proofs) -> None:
    """Write the file. Raise UsageError."""
    body = {
        "steps": options.steps,
        "batch": options.batch,
        "proofs": [{"model": model, **asdict(proof)} for model, proof in proofs.modes],
        "whole_batch": [{"model": model, **asdict(whole)} for model, whole in proofs.wholes],
    }
    with usage(), writing("the results"):
        write_json(options.json, msgspec.json.decode(msgspec.json.encode(body)))  # null: not finite


def table(proofs: Proofs) -> list[str]:
    """Return a row for each proof, and a line on each comparison with the whole batch."""
    rows = [
        [
            model,
            proof.mode,
            str(proof.ranks),
            proof.verdict,
            *(_number(proof.worst(name)) for name in ("gradients", "parameters", "loss")),
            _word(proof.replicas_equal),
            _word(proof.unshard_equal),
            proof.precision.partition(",")[0],
            "; ".join(filter(None, (proof.why, proof.precision.partition(", ")[2]))),
        ]
        for model, proof in proofs.modes
    ]
    headers = [
        "model",
        "mode",
        "ranks",
        "verdict",
        "gradients",
        "parameters",
        "loss",
        "replicas",
        "unshard",
        "in",
        "why",
    ]
    lines = tabulate(rows, headers, disable_numparse=True).splitlines()
    for model, whole in proofs.wholes:
        differences = f"gradients {whole.gradients:.1e}, parameters {whole.parameters:.1e}, loss {whole.loss:.1e}"
        lines.append(
            f"{model}, {whole.ranks} slices against the whole batch on one device: {differences} ({whole.why})"
        )
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.1e}"


def _word(value: bool | None) -> str:
    return "-" if value is None else "equal" if value else "DIFFERENT"
