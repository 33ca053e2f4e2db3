"""The lesson's demonstration: sums of parameters by rank, norm of the averaged gradient, round trip of the shards, and the
averaged gradient against that of one process, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.results.runfolder import Run
from benchmarks.seeds.parts import ours, table
from benchmarks.seeds.proofs import proved, worst

STEPS, BATCH = 3, 4


def demonstration(proof: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Return what the lesson's JSON says, of one way of training."""
    sums = proof["parameter_sums"]
    return {
        "mode": proof["mode"],
        "world_size": proof["ranks"],
        "parameter_sum_by_rank": sums,
        "parameter_spread": max(sums) - min(sums),
        "gradient_norm_after_all_reduce": proof["gradient_norms"],
        "fsdp_round_trip_bit_equal": proof["unshard_equal"],
        "gradient_against_slices_of_one_process": worst(proof, "gradients"),
        "gradient_against_one_process": worst(proof, "gradients") + whole["gradients"],
    }


def section(runs: list[Run], out: Path | None) -> list[str]:
    """Return this part of the page; prove beside it."""
    body = proved("experiment=lesson", steps=STEPS, batch=BATCH)
    wholes = {whole["ranks"]: whole for whole in body["whole_batch"]}
    shown = [demonstration(proof, wholes[proof["ranks"]]) for proof in body["proofs"]]
    if out is not None:
        (out / "lesson.json").write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    rows = [
        [
            f"`{one['mode']}`",
            str(one["world_size"]),
            f"{one['parameter_spread']:.0e}" if one["parameter_spread"] else "0",
            ", ".join(f"{norm:.3f}" for norm in one["gradient_norm_after_all_reduce"]),
            "bit-equal" if one["fsdp_round_trip_bit_equal"] else "DIFFERENT",
            f"{one['gradient_against_slices_of_one_process']:.1e}",
            f"{one['gradient_against_one_process']:.1e}",
        ]
        for one in shown
    ]
    headers = [
        "mode", "ranks", "spread of parameter sums", "gradient norm by step", "round trip of shards",
        "gradient: slices of one process", "gradient: one process",
    ]  # fmt: skip
    theirs = [
        "theirs",
        "2",
        "below 1e-3 asked for",
        "in its JSON",
        "bit-equal",
        "-",
        "about 1e-8; below 1e-3 asked for",
    ]
    differs = (
        "Theirs: a model and a loop by hand, gloo, one step. Ours: the engines that train, three steps, gloo in the runs, "
        "shared memory in the proof of our own modes. The last column is a bound: the difference to the slices, and that of "
        "the slices to the batch."
    )
    return [
        "## The lesson's demonstration, `experiment=lesson`",
        "All of it as [JSON](lesson.json).",
        table(headers, [theirs, *rows]),
        ours(runs),
        differs,
    ]
