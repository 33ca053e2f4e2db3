"""Runs of different seeds are different runs: no two end with the same parameters, here or in the baseline of their cell.

Two that do are one run that was copied, or an engine that ignores its seed. Then there are fewer seeds than it seems, and no
statistics of them holds.
"""

from __future__ import annotations

from bench.base.number_format import plural
from bench.validate.findings import Case
from bench.validate.reference import Reference, twins
from bench.validate.verdict import Verdict, verdict


def check(case: Case) -> Verdict | None:
    """Return REFUSED if two seeds ended with the same parameters; None if no run has their digest."""
    ended = {(m.seed, m.params_sha256) for m in case.cell.ok if m.params_sha256}
    if not ended:
        return None
    if wrong := twins(ended):
        return verdict("REFUSED", "seeds", case.cell, f"{wrong}: {WHY}")
    if case.own is not None and (wrong := _copied(ended, case.own)):
        return verdict("REFUSED", "seeds", case.cell, f"{wrong}: {WHY}")
    count = len({seed for seed, _ in ended})
    return verdict("PASS", "seeds", case.cell, f"{plural(count, 'seed')}, each with parameters of its own")


WHY = "one is a copy of the other, or the seed has no effect"


def _copied(ended: set[tuple[int, str]], reference: Reference) -> str:
    """Say which run ended as another seed of the baseline."""
    known = {sha: seed for seed, sha in reference.params_sha256.items()}
    for seed, sha in sorted(ended):
        if known.get(sha, str(seed)) != str(seed):
            return f"seed {seed} ended with the parameters of the baseline's seed {known[sha]} ({sha[:12]})"
    return ""
