"""Step times of `nccl_sync` and `ddp.DistributedDataParallel` over torch's DDP: two ranks; the modules take turns in
one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.models import MODELS
from benchmarks.ranks import gather
from benchmarks.stepping import WAYS, measure
from ddp.process.scratch import scratch

PAIRS, WORLD = 9, 2
LIMITS = dict.fromkeys(sorted(MODELS), 1.0) | {"mlp": 0.5, "logistic": 0.5}
"""Of torch's time; where communication rules, half of it."""


def launch(folder: Path, model: str) -> torch.Tensor:
    """[pairs, ways] seconds per step: the slower rank's."""
    ranks: list[tuple[Any, ...]] = [("auto", model, rank, WORLD, PAIRS) for rank in range(WORLD)]
    return torch.stack(gather(folder, measure, ranks)).amax(0)


@pytest.mark.parametrize("model", LIMITS)
def test_steps_against_torch(benchmark: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`nccl_sync` takes at most as long as torch's DDP, on `mlp` and `logistic` at most half."""
    found: list[torch.Tensor] = []

    def once() -> None:
        with scratch() as folder:
            found.append(launch(folder, model))

    benchmark.pedantic(once, rounds=1)
    seconds, torch_way = found[0], WAYS.index("torch_ddp")
    middle = {way: f"{1e3 * float(seconds[:, at].median()):.3f} ms" for at, way in enumerate(WAYS)}
    ratios = {}
    for way in ("nccl_sync", "over_gloo", "ddp"):
        ratio = (seconds[:, WAYS.index(way)] / seconds[:, torch_way]).sort().values
        low, ratios[way], high = (float(ratio[at]) for at in (len(ratio) // 4, len(ratio) // 2, -1 - len(ratio) // 4))
        benchmark.extra_info[way] = ratios[way]
        middle[way] += f" ({ratios[way]:.2f} of torch_ddp, {low:.2f} to {high:.2f})"
    with capsys.disabled():
        print(f"\n{model}: " + ", ".join(f"{way} {text}" for way, text in middle.items()))
    assert ratios["nccl_sync"] <= LIMITS[model]
