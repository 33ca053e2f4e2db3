"""Trees of many run folders, generated: one real recorded stream for each mode, its metrics varied by seed and workload."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count, islice, product
from pathlib import Path

from bench.results.runfolder import CONFIG, EVENTS, METRICS
from bench.results.schema import Metrics
from ddp.process.codec import encode
from tests.bench.streams import MODES, make_metrics, make_records, make_spec

MODELS = ("mlp", "lenet", "resnet_graph", "vit")
SIZES = (2, 4)
SEEDS = 5


def plant(root: Path, runs: int) -> None:
    """Write `runs` folders of different workloads, modes, world sizes and seeds."""
    kinds = {(mode, size): _kind(mode, size) for mode in MODES for size in SIZES}
    draw = random.Random(0)
    for model, epochs, mode, size, seed in islice(_points(), runs):
        metrics, events = kinds[mode, size]
        name = f"w{metrics.world_size}-s{seed}-{model}{epochs}"
        folder = root / model / mode / name
        folder.mkdir(parents=True)
        body = json.loads(metrics.model_dump_json())
        body |= {
            "run_id": name,
            "model": model,
            "seed": seed,
            "epochs_planned": epochs,
            "config_hash": f"{mode}{size}{epochs}",
        }
        body["final"]["eval"] = 0.97 + 0.01 * draw.random()
        body["throughput"]["samples_per_s"] *= draw.uniform(0.9, 1.1)
        (folder / METRICS).write_text(json.dumps(body))
        (folder / CONFIG).write_text("{}")
        (folder / EVENTS).write_bytes(events)


def _points() -> Iterator[tuple[str, int, str, int, int]]:
    for epochs in count(3):
        for model, mode, size, seed in product(MODELS, MODES, SIZES, range(SEEDS)):
            if mode != "solo" or size == SIZES[0]:
                yield model, epochs, mode, size, seed


def _kind(mode: str, size: int) -> tuple[Metrics, bytes]:
    spec = make_spec(mode, world_size=1 if mode == "solo" else size)
    records = make_records(spec, windows=20)
    return make_metrics(spec, records), b"".join(encode(record) + b"\n" for record in records)
