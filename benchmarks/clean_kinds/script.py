"""A user's own script: `script.py NUMBER FOLDER` draws model, loss, optimizer, schedule, loader and mode, and trains."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import data

import ddp

WIDE, CLASSES = 12, 4
WINDOWED = "nccl_cadence", "cpu_cadence", "nccl_async", "cpu_async", "nccl_qsr"
MODES = *WINDOWED, "nccl_sync", "cpu_sync", "zero1", "zero2", "zero3", "graph_sync"
MORE_MODES = "graph_cadence", "torch_ddp", "torch_fsdp", "torch_zero1", "torch_local_sgd", "solo", "virtual_cpu_cadence"
NUMBER = int(sys.argv[1])
DRAW = random.Random(NUMBER)


def points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randn(count, WIDE, generator=generator)
    return xs, (xs[:, :CLASSES] + 0.5 * xs[:, CLASSES : 2 * CLASSES]).argmax(1)


class Rows(data.Dataset[dict[str, Tensor]]):
    """Batches that are dictionaries; `noise`: what each reading adds."""

    def __init__(self, xs: Tensor, ys: Tensor, noise: float) -> None:
        self.xs, self.ys, self.noise = xs, ys, noise

    def __len__(self) -> int:
        return len(self.xs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.xs[index] + self.noise * torch.randn(WIDE), "y": self.ys[index]}


class Sequences(data.Dataset[tuple[Tensor, Tensor]]):
    """Sequences of unequal lengths."""

    def __init__(self, xs: Tensor, ys: Tensor) -> None:
        self.xs, self.ys = xs, ys

    def __len__(self) -> int:
        return len(self.xs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.xs[index, : 4 + index % 9], self.ys[index]


def padded(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([len(x) for x, _ in samples])
    return nn.utils.rnn.pad_sequence([x for x, _ in samples], True), lengths, torch.stack([y for _, y in samples])


class Plain(nn.Module):
    """Layers, with what `kind` names between them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDE, 24), nn.Linear(24, CLASSES)
        self.between: nn.Module = nn.Identity()
        if kind == "norm":
            self.between = nn.Sequential(nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2))
        elif kind == "layer_norm":
            self.between = nn.Sequential(nn.LayerNorm(24), nn.GELU())
        elif kind == "frozen":
            self.first.requires_grad_(False)
        elif kind == "weight_norm":
            self.first = nn.utils.parametrizations.weight_norm(self.first)
        elif kind == "unused":
            self.other = nn.Linear(3, 3)

    def forward(self, batch: Any) -> Tensor:
        xs = batch["x"] if isinstance(batch, dict) else batch[0]
        hidden = self.between(self.first(xs))
        return self.last(hidden.relu())


class Tied(nn.Module):
    """An autoencoder whose halves share a matrix, and a classifier on it: two losses."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.head = nn.Linear(WIDE, 24, bias=False), nn.Linear(24, CLASSES)
        self.decode = nn.Linear(24, WIDE)
        self.wide = nn.Linear(WIDE, 24, bias=False)
        self.wide.weight = self.encode.weight

    def forward(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        xs = batch["x"] if isinstance(batch, dict) else batch[0]
        hidden = (self.encode(xs) + 0.1 * self.wide(xs)).tanh()
        return self.head(hidden), self.decode(hidden), xs


class Lengths(nn.Module):
    """A recurrent net on packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = nn.GRU(1, 16, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, batch: Any) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            batch[0].unsqueeze(2), batch[1].cpu(), batch_first=True, enforce_sorted=False
        )
        return self.last(self.rnn(packed)[1][-1])


class Lion(torch.optim.Optimizer):
    """An optimizer of one's own (arXiv:2302.06675)."""

    def __init__(self, parameters: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    p.sub_(average.lerp(p.grad, 1 - group["betas"][0]).sign_(), alpha=group["lr"])
                    average.lerp_(p.grad, 1 - group["betas"][1])


def in_groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    matrices, others = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 1e-3}]
    return torch.optim.AdamW(groups, lr=3e-3)


def two(parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    return [torch.optim.Adam(parameters[:1], lr=3e-3), torch.optim.SGD(parameters[1:], lr=0.05, momentum=0.9)]


OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda ps: torch.optim.Adam(ps, lr=3e-3),
    "amsgrad": lambda ps: torch.optim.Adam(ps, lr=3e-3, amsgrad=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.02),
    "nadam": lambda ps: torch.optim.NAdam(ps, lr=3e-3),
    "asgd": lambda ps: torch.optim.ASGD(ps, lr=0.05),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=1e-3),
    "fused": lambda ps: torch.optim.AdamW(ps, lr=3e-3, fused=True),
    "lion": lambda ps: Lion(ps, lr=1e-3),
    "groups": in_groups,
    "two": two,
}
KINDS = "plain", "norm", "layer_norm", "frozen", "weight_norm", "unused", "tied", "lengths"
KIND, SHAPE = DRAW.choice(KINDS), DRAW.choice(("tensors", "rows", "noisy"))


def model() -> nn.Module:
    return Tied() if KIND == "tied" else Lengths() if KIND == "lengths" else Plain(KIND)


def labels(batch: Any) -> Tensor:
    return batch["y"] if isinstance(batch, dict) else batch[-1]


def loss(net: nn.Module, batch: Any) -> Tensor:
    out = net(batch)
    if not isinstance(out, tuple):
        value = F.cross_entropy(out, labels(batch), label_smoothing=0.1)
        ddp.record_scalar("cross", value)
        return value
    first, second = F.cross_entropy(out[0], labels(batch)), F.mse_loss(out[1], out[2])
    ddp.record_scalar("rebuilt", second)
    return first + 0.3 * second


def judged(net: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    out = net(batch)
    out = out[0] if isinstance(out, tuple) else out
    return F.cross_entropy(out, labels(batch)), (out.argmax(1) == labels(batch)).double().mean()


def metric_alone(net: nn.Module, batch: Any) -> Tensor:
    return judged(net, batch)[1]


def brighter(batch: Any, draws: ddp.Draws) -> Any:
    xs, ys = batch
    return xs * (0.8 + 0.4 * draws.uniform(1)), ys


def rising(epoch: int) -> Tensor:
    return torch.randperm(SAMPLES)[: SAMPLES // 2]


def slower_epochs(epoch: int, worker: ddp.WorkerHandle) -> None:
    if epoch:
        worker.scale_lr(0.5)


SAMPLES = DRAW.choice((5, 97, 600, 1601, 3000))


def sets() -> tuple[Any, Any]:
    train, test = points(SAMPLES, 1), points(203, 2)
    if KIND == "lengths":
        return Sequences(*train), Sequences(*test)
    if SHAPE == "tensors":
        return train, data.TensorDataset(*test)
    return Rows(*train, 0.1 if SHAPE == "noisy" else 0.0), Rows(*test, 0.0)


def options(mode: str, ranks: int) -> Iterator[tuple[str, Any]]:
    """Iterate over arguments of a `Trainer`."""
    falling = ddp.LRSchedule(lambda o: torch.optim.lr_scheduler.StepLR(o, 10, 0.7), steps=40)
    warm = ddp.LRSchedule(
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.01, 50, cycle_momentum=False), steps=50, lr=1.0
    )
    for chance, name, choices in (
        (0.4, "schedule", (falling, warm, lambda done: 1 - done, lambda done: min(1.0, done * 10))),
        (0.3, "max_grad_norm", (0.1, 1.0)),
        (0.3, "accumulate", (2, 3)),
        (0.2, "precision", ("bf16", "fp16")),
        (0.2, "drop_last", (True,)),
        (0.15, "sampler", (rising, None)),
        (0.15, "epoch_callback", (slower_epochs,)),
        (0.2, "loader", ("streaming",)),
        (0.4, "lr_scale_ratio", (0.0, 0.5)),
        (0.05, "compile", (True,)),
        (0.1, "deterministic", (True,)),
    ):
        if DRAW.random() < chance:
            yield name, DRAW.choice(choices)
    if KIND == "norm":
        yield "drop_last", True  # a batch of one sample has no deviation
    if KIND == "lengths":
        yield "collate_fn", padded
    elif SHAPE == "tensors" and DRAW.random() < 0.2:
        yield "augment", brighter
    if ranks > 1 and mode in (*WINDOWED, "nccl_sync", "cpu_sync"):
        if DRAW.random() < 0.3:
            yield "speeds", [DRAW.choice((1.0, 0.6, 0.4)) for _ in range(ranks)]
        if DRAW.random() < 0.15:
            yield (
                "faults",
                [f"{DRAW.randrange(ranks)}@{DRAW.randrange(2, 9)}:{DRAW.choice(('crash', 'raise', 'slow'))}"],
            )
    if DRAW.random() < 0.3:
        yield "steps", DRAW.choice((6, 60))


def main() -> None:
    mode = DRAW.choice((*MODES * 2, *MORE_MODES))
    ranks = 1 if mode == "solo" else DRAW.choice((1, 2, 2, 3, 4))
    optimizer, test = DRAW.choice(list(OPTIMIZERS)), DRAW.choice((judged, judged, metric_alone, None))
    batch, epochs = DRAW.choice((1, 8, 16, 33, 128) if SAMPLES < 100 else (16, 33, 128)), DRAW.choice((1, 2, 3))
    chosen, (train, tested) = dict(options(mode, ranks)), sets()
    told = {name: value if isinstance(value, int | float | str | list) else "own" for name, value in chosen.items()}
    print(
        f"script {mode} x{ranks} {KIND} {SHAPE} {optimizer} n={SAMPLES} batch={batch} epochs={epochs} {told}",
        flush=True,
    )
    measured = {"eval_step": test, "eval_dataset": tested if test else None, "seed": NUMBER, "mode": mode}
    recorded = {"output": sys.argv[2], "name": "own", "metric": "accuracy", "world_size": ranks}
    cell = {"batch_size": batch, "epochs": epochs, **measured, **recorded, **chosen}
    ddp.Trainer(model, OPTIMIZERS[optimizer], loss, train, **cell).run().join()


if __name__ == "__main__":
    main()
