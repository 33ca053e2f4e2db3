"""The same cell and seed give the same bits if the mode promises it: in two runs, or in a run and its reference.

Equal must be the digest of the final parameters, every loss, evaluation, learning rate and scalar of the epochs, and
all counts: steps, samples, the ledger; unless one was resumed, collectives and bytes. `solo` promises it, as do modes whose
replicas are equal after every step, on one kind of machine with one version of torch and one of the source. Graph mode
with several ranks does not, as it divides batches by measured speeds; nor does a GPU, unless `train.deterministic` is
set. Scalars and training losses are compared up to rounding, as the clock decides how their sums are split. What a
user's own steps record may be a time, so a difference in that alone is only mentioned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.base.grouping import grouped
from bench.base.number_format import plural
from bench.results.recompute import differences
from bench.results.runfolder import group_of
from bench.results.schema import Metrics
from bench.validate.baselines.fingerprint import Fingerprint
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.backends import is_torch_native
from ddp.core.policies import meets_every_step

ROUNDED = 1e-11
"""Relative difference that two sums of the same numbers may have if they are split differently."""
SPLIT = "scalars", "train_loss"
"""Parts of the names of such sums."""
SCALARS = " scalars", " scalars_per_rank"
"""Ends of the names of what steps recorded."""


def promised(m: Metrics, config: Mapping[str, Any]) -> bool:
    """Return whether the bits of a run depend on nothing but its cell and seed. `config`: its resolved configuration."""
    alike = m.engine == "solo" or (meets_every_step(m.policy) and not is_torch_native(m.backend))
    if m.engine == "graph" and m.world_size > 1:
        return False  # measured speeds decide each rank's share of a batch
    strict = group_of(config, "train").get("deterministic") is True
    if not strict and any(device.startswith("cuda") for device in m.devices):
        return False  # PyTorch's kernels may add in any order
    resized = m.resumed is not None and m.resumed.ranks  # other ranks add in another order
    return alike and not m.faults and not m.scripted_faults and not m.begun_without and not resized


def trace(m: Metrics) -> dict[str, Any]:
    """Return the values that must be equal: the digest first, then those of the epochs, then the counts."""
    rows = {
        f"epoch {row.epoch} {name}": value
        for row in m.epochs
        for name, value in row.model_dump(exclude={"epoch", "seconds"}).items()
    }
    counts = {name: getattr(m, name) for name in ("steps", "samples", "parameters")}
    counts["epochs"] = len(m.epochs)
    reached = {f"target.{name}": getattr(m.target, name) for name in ("value", "reached", "samples")}
    final = {f"final.{name}": value for name, value in m.final.model_dump().items()}
    sums = () if m.resumed is not None else ("count", "bytes")  # of a resumed run they are of the rest alone
    sync = {f"sync.{name}": getattr(m.sync, name) for name in ("kind", *sums)}
    ledger = {"ledger": m.ledger.model_dump()} if m.ledger is not None else {}
    return {"params_sha256": m.params_sha256, **rows, **counts, **final, **reached, **sync, **ledger}


def unlike(first: Metrics, second: Metrics) -> list[str]:
    """Return the differences between two runs of one cell and seed, the digest first; empty: they are equal, bit for
    bit."""
    a, b = trace(first), trace(second)
    return [f"{name}: {a[name]} and {b[name]}" for name in a if name in b and not _same(name, a[name], b[name])]


def broken(differences: list[str], config: Mapping[str, Any]) -> list[str]:
    """Return those of `unlike` that break the promise: all, or none if only what a user's own steps recorded differs.
    `config`: the resolved configuration of the runs."""
    own = config.get("script") or "model" in (config.get("code") or {})
    recorded = all(each.partition(":")[0].endswith(SCALARS) for each in differences)
    return [] if own and recorded else differences


def _same(name: str, first: Any, second: Any) -> bool:
    if any(part in name for part in SPLIT):
        return next(differences(first, second, slack=ROUNDED), None) is None
    return bool(first == second)


def check(case: Case) -> Verdict | None:
    """Return FAIL if two runs that must be equal differ; None if nothing is promised, or there is no second run."""
    cell = case.cell
    runs = [m for m in cell.ok if promised(m, cell.runs[0].config) and m.params_sha256]
    alike = grouped(((m.seed, _source(m), str(Fingerprint.of(m).machine)), m) for m in runs)
    pairs = [(first, other) for first, *others in alike.values() for other in others]
    apart, config = [(a.seed, lines) for a, b in pairs if (lines := unlike(a, b))], cell.runs[0].config
    different = [f"seed {seed}, two runs: {lines[0]}" for seed, lines in apart if broken(lines, config)]
    recorded = _recorded(case, [first for first, *_ in alike.values()])
    different += [
        f"seed {m.seed}: params_sha256 {sha[:12]} in the baseline, {str(m.params_sha256)[:12]} here"
        for m, sha in recorded
        if m.params_sha256 != sha
    ]
    count = len(pairs) + len(recorded)
    if not count:
        return None
    line = f"{count - len(different)} of {plural(count, 'pair')} of runs with equal seeds are bit-identical"
    if different:
        return verdict("FAIL", "determinism", cell, f"{line}; {different[0]}")
    note = f"; seed {apart[0][0]} recorded other scalars, as times are: {apart[0][1][0]}" if apart else ""
    return verdict("PASS", "determinism", cell, line + note)


def _source(m: Metrics) -> str:
    """Return the version of the source that a run was made with, as text."""
    return str([m.git.get(name) for name in ("sha", "version", "dirty")])


def _recorded(case: Case, runs: list[Metrics]) -> list[tuple[Metrics, str]]:
    """Return (run, digest in the reference), for references that the same source made on the same kind of machine."""
    match = case.match
    if match is None or not match.own:
        return []
    reference = match.reference
    shas = [state.get("sha") for state in reference.git]
    return [
        (m, reference.params_sha256[str(m.seed)])
        for m in runs
        if str(m.seed) in reference.params_sha256
        and Fingerprint.of(m).machine == reference.environment.machine
        and [m.git.get("sha")] == shas
        and not m.git.get("dirty")
    ]
