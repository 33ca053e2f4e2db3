"""Defects that no check was written for: what does a judge find that has not seen them?

Real ones, as engineers make them or other projects had them (`source`: the number in a list of historical defects, or a
sentence), in nine families. Each is a function that breaks a module as it is imported (`benchmarks.bugs.hooks`). A run with
one ends well, and is another run than without. Whatever check fails will do. Another one is a function in one of the files
`unseen_*`, under `@unseen`: `python -m benchmarks.bugs NAME` tries it, and it is left as it is, caught or not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType

from benchmarks.bugs.bug import ANY, Bug, Patch

UNSEEN: dict[str, Bug] = {}
"""Name -> what it is, of all files."""
RESUMED, RESUMING = "resumed", ("checkpoint.spacing_s=0", "cluster.tolerate_loss=false")


def unseen(
    family: str,
    source: str,
    cell: str,
    module: str,
    more: Mapping[str, Patch] = MappingProxyType({}),
    check: str = ANY,
) -> Callable[[Patch], Patch]:
    """Enter the patch of `module` that follows, under its name; its first sentence says what it breaks.

    `cell`: model, mode and settings. `resumed` among these, once or more: the run stops and is gone on with;
    `resumed:SETTING`: with that. `more`: other modules' patches. `check`: the one that has caught it."""
    model, mode, *words = cell.split()
    resumed = tuple(tuple(word.split(":")[1:]) for word in words if word.startswith(RESUMED))
    settings = [word for word in words if not word.startswith(RESUMED)]

    def enter(patch: Patch) -> Patch:
        name = patch.__name__
        assert name not in UNSEEN, name
        breaks = " ".join(inspect.getdoc(patch).split()).partition(". ")[0].removesuffix(".")  # type: ignore[union-attr]
        UNSEEN[name] = Bug(
            f"{family}: {breaks}",
            "unseen",
            source,
            check,
            (mode,),
            {module: patch, **more},
            (model,),
            settings=(*RESUMING, *settings) if resumed else tuple(settings),
            resumed=resumed,
        )
        return patch

    return enter


NCCL, CPU, MEAN = "ddp.backends.allreduce", "ddp.backends.snapshot", "ddp.replica.memory.weighted_mean"
REPLICA, RESIDENT, VISITS = "ddp.replica.replica", "ddp.data.resident", "ddp.data.epoch_order"
PENDING, GATHER, LANGUAGE = "ddp.engine.pending", "ddp.data.gather", "bench.models.data.toy_language"
RATES, ZERO1, LOOP, METER = (
    "ddp.replica.optim.learning_rates",
    "ddp.sharding.zero1",
    "ddp.engine.loop",
    "ddp.process.meter",
)
PACKED, SHARED = "ddp.gradients.step_gradients", "ddp.gradients.exchange"
DIGITS, PARTS = "bench.models.data.noisy_digits", "bench.models.parts"
SUMMARY, SPEED = "ddp.core.figures.summary", "bench.results.analysis.training"
OWNED, WORKER = "ddp.gradients.owned", "ddp.core.worker"
ACTIONS, ACCUMULATE = "ddp.core.rounds.round_actions", "ddp.graph.accumulate"
LOCAL_SGD, REPORTS, ATTENTION = "ddp.backends.torch_local_sgd", "ddp.engine.reports", "bench.models.attention"
PASSES, FIGURES, AVERAGE = "ddp.replica.passes", "ddp.replica.figures", "ddp.gradients.average"
PARTS_OF_CHECKPOINT, TORCH = "ddp.checkpoint.parts", "ddp.backends.torch_backend"
STORAGE, OUTER, AVERAGING = "ddp.gradients.storage", "ddp.replica.optim.outer_optimizer", "ddp.core.settings.averaging"
SOLO, SYNC, CADENCE, ASYNC = "mlp solo", "mlp nccl_sync", "mlp nccl_cadence", "mlp cpu_async"
SHARDS, GRAPH, LENET = "mlp zero1", "mlp graph_sync", "lenet nccl_cadence"
RESNET = "resnet_graph nccl_cadence"
AUGMENTED = "recipe=published data.name=noisy_digits data.samples=5390 train.epochs=3 train.batch_size=32 model.depth=8"
THREE, UNEQUAL, CLIPPED = "world_size=3", "cluster.speeds=[1.0,0.5]", "train.max_grad_norm=0.5"
HALF = "train.precision=bf16"
