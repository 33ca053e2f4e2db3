"""Runs of different seeds are different runs: no two end with the same parameters, here or in the baseline of their
cell.

Two that do are copies of one run, or the engine ignores the seed. Then there are fewer seeds than it seems, and
statistics over them are wrong.
"""

from __future__ import annotations

from bench.validate.baselines.reference import Reference, twins
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict


def check(case: Case) -> Verdict | None:
    """Return REFUSED if two seeds ended with the same parameters; None if no run has a digest of its parameters."""
    ended = {(m.seed, m.params_sha256) for m in case.cell.ok if m.params_sha256}
    if not ended:
        return None
    if wrong := twins(ended):
        return verdict("REFUSED", "seeds", case.cell, f"{wrong}: {WHY}")
    if case.own is not None and (wrong := _copied(ended, case.own)):
        return verdict("REFUSED", "seeds", case.cell, f"{wrong}: {WHY}")
    count = len({seed for seed, _ in ended})
    alone = "1 seed, so no other seed has the same parameters"
    return verdict("PASS", "seeds", case.cell, f"{count} seeds ended with different parameters" if count > 1 else alone)


WHY = "one is a copy of the other, or the seed has no effect"


def _copied(ended: set[tuple[int, str]], reference: Reference) -> str:
    """Name the run whose final parameters are those of another seed of the baseline."""
    known = {sha: seed for seed, sha in reference.params_sha256.items()}
    for seed, sha in sorted(ended):
        if known.get(sha, str(seed)) != str(seed):
            return f"seed {seed} ended with the parameters of the baseline's seed {known[sha]} ({sha[:12]})"
    return ""
