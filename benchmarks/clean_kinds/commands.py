"""Draws settings of commands, and what befalls their processes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

MODELS = ("mlp",) * 4 + ("lenet",) * 3 + ("logistic", "conv_ae", "char_rnn", "gpt_nano", "resnet_graph")
OWN_MODELS = tuple(f"benchmarks.bugs.own_{name}" for name in ("augmented", "noisy", "sampled", "skipping"))
LONG = ("char_rnn", "gpt_nano", "resnet_graph")
NORMED = ("lenet", "resnet_graph")
WINDOWED = tuple(f"{backend}_{policy}" for backend in ("nccl", "cpu") for policy in ("cadence", "async", "qsr"))
INSIDE = ("nccl_sync", "cpu_sync", "zero1", "zero2", "zero3")
PEERS = ("torch_ddp", "torch_fsdp", "torch_zero1", "torch_local_sgd")
GRAPHS = ("graph_sync", "graph_cadence")
MODES = (*WINDOWED * 2, *INSIDE * 2, *PEERS, *GRAPHS, "solo", "virtual_nccl_cadence", "virtual_cpu_async")


@dataclass(frozen=True)
class Settings:
    """What a command is given, and what befalls it."""

    words: tuple[str, ...]
    kills: tuple[float, ...] = ()
    """Seconds behind a checkpoint after which it is killed; it goes on after each."""
    resumed_with: tuple[str, ...] = ()
    """Other settings that it goes on with."""
    joiners: int = 0
    """Processes that are offered once it trains."""

    def __str__(self) -> str:
        """Return them in words."""
        parts = [" ".join(self.words)]
        parts += [f"(killed {len(self.kills)} times{' '.join(('', *self.resumed_with))})"] if self.kills else []
        return " ".join([*parts, *([f"({self.joiners} joined)"] if self.joiners else [])])


def drawn(number: int) -> Settings:
    """Draw the settings of run `number`."""
    draw = random.Random(number)
    if draw.random() < 0.2:
        return _hostile(draw, number)
    own = draw.random() < 0.15
    model, mode = draw.choice(OWN_MODELS if own else MODELS), draw.choice(MODES)
    ranks = 1 if mode == "solo" else draw.choice((1, 2, 2, 2, 3, 4))
    words = [f"model={model}", f"mode={mode}", f"world_size={ranks}", f"seed={number}"]
    words.append(f"train.epochs={draw.choice((1, 2, 3, 4))}")
    if not own:
        words.append(f"data.samples={draw.choice((600, 1000, 1500) if model in LONG else (1501, 3000, 6000))}")
    words += _of_steps(draw, mode, ranks)
    joiners = 0
    if ranks > 1 and mode in WINDOWED + INSIDE:
        words += _of_several(draw, mode, ranks)
        if mode in WINDOWED and ranks > 2 and draw.random() < 0.1:
            words, joiners = [*words, "cluster.absent=1"], draw.choice((1, 2))
    if mode not in (*WINDOWED, *INSIDE, "solo") or joiners or draw.random() < 0.75:
        return Settings(tuple(words), joiners=joiners)
    resized = [f"world_size={draw.choice([n for n in (2, 3, 4) if n != ranks])}"] if ranks > 1 else []
    clean = not any(word.startswith(("cluster.faults", "cluster.speeds")) for word in words)
    kills = tuple(draw.choice((0.3, 1.0, 2.5)) for _ in range(draw.choice((1, 1, 2))))
    with_others = tuple(resized) if clean and draw.random() < 0.4 else ()
    return Settings((*words, "checkpoint.spacing_s=0"), kills[:1] if with_others else kills, with_others)


def _of_steps(draw: random.Random, mode: str, ranks: int) -> Iterator[str]:
    """Iterate over settings of steps, loader and checkpoints."""
    sizes = [f"train.batch_size={size}" for size in (7, 16, 50, 128)]
    for chance, choices in (
        (0.4, [*sizes, *(f"train.global_batch_size={ranks * n}" for n in (8, 24))]),
        (0.2, ["train.accumulate=2", "train.accumulate=3"]),
        (0.2, ["train.precision=bf16", "train.precision=bf16", "train.precision=fp16"]),
        (0.2, ["train.max_grad_norm=1.0", "train.max_grad_norm=0.1"]),
        (0.2, ["loader.kind=streaming", "loader.kind=resident"]),
        (0.2, ["train.lr_scale_ratio=0.5"]),
        (0.1, ["train.deterministic=true", "profile.steps=5"]),
        (0.3, ["checkpoint.every=1", "checkpoint.every=0", "checkpoint.unit=averages"]),
    ):
        if draw.random() < chance:
            word = draw.choice(choices)
            if not word.startswith("checkpoint") or mode in (*WINDOWED, *INSIDE, "solo"):
                yield word


def _of_several(draw: random.Random, mode: str, ranks: int) -> Iterator[str]:
    """Iterate over settings of the cluster and the averages."""
    if draw.random() < 0.4:
        yield f"cluster.speeds=[{','.join(str(draw.choice((1.0, 0.7, 0.5, 0.3))) for _ in range(ranks))}]"
    if draw.random() < 0.15:
        yield draw.choice(("cluster.links=5ms/1gbit/jitter1ms", "cluster.links=wan_1g_30ms"))
    if draw.random() < 0.15:
        yield draw.choice(
            ("cluster.transport=gloo", "cluster.compare=20" if mode == "nccl_sync" else "cluster.spares=1")
        )
    if mode in WINDOWED:
        yield from _of_averages(draw, mode, ranks)
    if not mode.startswith("zero") and draw.random() < 0.3:
        kind = draw.choice(("crash", "raise", "stall", "slow", "input*3", "lose"))
        yield f"cluster.faults=[{draw.randrange(ranks)}@{draw.randrange(3, 12)}:{kind}]"
        if kind == "stall":
            yield "cluster.deadline_s=6"
        if kind in ("crash", "raise", "stall") and draw.random() < 0.5:
            yield draw.choice(("cluster.restart=2", "cluster.restart=always"))


def _of_averages(draw: random.Random, mode: str, ranks: int) -> Iterator[str]:
    """Iterate over settings of windows and averages."""
    if draw.random() < 0.5:
        words = "gamma=0", "gamma=2", "elastic=0.5", "outer=momentum", "outer=nesterov", "optimizer_state=true"
        yield f"averaging.{draw.choice((*words, 'optimizer_reset=true'))}"
    if mode.startswith("nccl") and draw.random() < 0.3:
        yield draw.choice(("averaging.wire=bfloat16", "averaging.wire=float32"))
    if draw.random() < 0.3:
        policy = ("max_batch_diff=0", "max_batch_diff=3")
        if mode.endswith("qsr"):
            policy = (*policy, "base=2", "alpha=0.02")
        else:
            ratios = ",".join([str(1 / ranks)] * ranks)
            policy = *policy, "anchor=1", "max_anchor=3", "guard=growth", "dispatch=partition", "smoothing=trust"
            policy = *policy, f"partition_ratios=[{ratios}]"
        yield f"policy.{draw.choice(policy)}"


def _hostile(draw: random.Random, number: int) -> Settings:
    """Draw what hardly makes a run: a few samples, batches or steps."""
    model, mode = draw.choice((*MODELS, *NORMED)), draw.choice(MODES)
    ranks = 1 if mode == "solo" else draw.choice((1, 2, 3, 4, 5))
    batch = draw.choice((1, 2, 5, 16, 64))
    words = [f"model={model}", f"mode={mode}", f"world_size={ranks}", f"seed={number}", f"train.batch_size={batch}"]
    samples = draw.choice((1, 2, 3, batch, batch + 1, ranks * batch, ranks * batch + 1, 3 * ranks * batch - 1))
    words.append(f"data.samples={max(samples, 1)}")
    steps = draw.choice((0, 0, 1, 2, 5))
    words.append(f"train.steps={steps}" if steps else f"train.epochs={draw.choice((1, 2, 7))}")
    for chance, word in ((0.2, "train.accumulate=3"), (0.2, "checkpoint.every=1"), (0.1, "train.precision=bf16")):
        if draw.random() < chance and not (word.startswith("checkpoint") and mode in PEERS + GRAPHS):
            words.append(word)
    if ranks > 1 and mode in WINDOWED and draw.random() < 0.3:
        words.append(f"policy.{draw.choice(('max_batch_diff=0', 'max_batch_diff=1'))}")
    return Settings(tuple(words))
