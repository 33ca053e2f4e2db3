"""xtrain's acceptance (its phase T8): tokens a second at one batch a GPU, and 20 steps against one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.results.runfolder import Run
from benchmarks.seeds.parts import ours, shown, table
from benchmarks.seeds.proofs import proved, worst

THEIRS = {1: "1.00", 2: "about 2", 4: "about 4"}
"""GPUs -> speed-up that is asked for; no numbers are published but some 8,500 tokens a second on one."""
STEPS, BATCH = 20, 4
MODEL = str(Path(__file__).with_name("plain_gpt.py"))


def section(runs: list[Run], out: Path | None) -> list[str]:
    """Return this part of the page; prove beside it."""
    rates = {run.metrics.world_size: run.metrics.work.tokens_per_s for run in runs if run.metrics.work}
    alone = rates.get(1)
    rows = []
    for ranks, asked in THEIRS.items():
        own = rates.get(ranks)
        rows.append([str(ranks), asked, shown(own, "{:,.0f}"), shown(own / alone if own and alone else None)])
    body = proved(f"model={MODEL}", "mode=nccl_sync,torch_ddp", "world_size=2", steps=STEPS, batch=BATCH)
    if out is not None:
        (out / "xtrain.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    differs = (
        "Theirs: threads of one process on GPUs over NCCL, AdamW, losses of both runs compared, relative. Ours: processes, "
        "Adam, absolute differences, of gradients too; without dropout here, as ranks draw their own. Two references: the "
        "ranks' slices, one after the other in plain PyTorch, where every bit is known; and the whole batch at once."
    )
    return [
        "## xtrain: tokens a second and one device, `experiment=xtrain`",
        table(["ranks", "theirs: speed-up asked for", "ours: tokens a second", "speed-up"], rows),
        ours(runs),
        f"{STEPS} steps of a global batch of {2 * BATCH} on 2 ranks against one device ([JSON](xtrain.json)):",
        table(["what", "theirs: asked for", *(f"`{proof['mode']}`" for proof in body["proofs"])], _proof(body)),
        differs,
    ]


def _proof(body: dict[str, Any]) -> list[list[str]]:
    proofs, whole = body["proofs"], body["whole_batch"][0]
    equal = ["equal" if proof["replicas_equal"] else "DIFFERENT" for proof in proofs]
    rows = [["ranks after every step", "difference 0.0", *equal]]
    for name in ("loss", "parameters", "gradients"):
        rows.append([f"{name}, slices on one device", "-", *(f"{worst(proof, name):.1e}" for proof in proofs)])
    for name, asked in (("loss", "below 1e-3"), ("parameters", "below 1e-3"), ("gradients", "-")):
        rows.append([f"{name}, whole batch on one device", asked, *[f"{whole[name]:.1e}"] * len(proofs)])
    return rows
