"""Trains as a user's script with extreme values: `extremes.py NUMBER FOLDER` draws scale, type, loss, rate and sizes.

Nothing is wrong with such a run: features of 1e9 that cancel, losses that are negative, huge or cross zero, parameters in
double precision or bfloat16, rates too low to move a number, one sample left over, one test sample.
"""

from __future__ import annotations

import random
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import data

import ddp

WIDE, CLASSES = 12, 4
SYNCHRONOUS = "solo", "nccl_sync", "cpu_sync", "zero1", "zero2", "graph_sync"
MODES = *SYNCHRONOUS, "nccl_cadence", "cpu_cadence", "nccl_async", "cpu_async", "virtual_nccl_cadence"
NUMBER = int(sys.argv[1])
DRAW = random.Random(f"extremes {NUMBER}")
TYPE = DRAW.choice((torch.float32, torch.float64, torch.float64, torch.bfloat16))
SCALE = DRAW.choice((1.0, 1e6, 1e9, 1e-9))
FACTOR, SHIFT = DRAW.choice(((1.0, 0.0), (1e6, 0.0), (1e-6, 0.0), (1.0, -1e3), (1.0, -1.3), (1e9, -1e9)))
CENTRED = DRAW.random() < 0.5
RATE = DRAW.choice((1e-2, 1e-3, 1e-5, 1e-8))
OPTIMIZER = DRAW.choice(("sgd", "adam") if FACTOR <= 1 else ("adam",))


def points(count: int, seed: int) -> data.TensorDataset:
    """Return samples, half of them the others' negatives if they are `CENTRED`."""
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randn(count, WIDE, generator=generator, dtype=torch.float64)
    if CENTRED and count % 2 == 0:
        xs[count // 2 :] = -xs[: count // 2].flip(0)
    labels = (xs[:, :CLASSES] + 0.5 * xs[:, CLASSES : 2 * CLASSES]).argmax(1)
    return data.TensorDataset((xs * SCALE).to(torch.promote_types(TYPE, torch.float32)), labels)


class Net(nn.Module):
    """A perceptron without biases, whose norm layer has weights of one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDE, 24, bias=False), nn.Linear(24, CLASSES, bias=False)
        self.norm = nn.LayerNorm(24)

    def forward(self, xs: Tensor) -> Tensor:
        return self.last(self.norm(self.first((xs / SCALE).to(TYPE))).relu())


def model() -> nn.Module:
    return Net().to(TYPE)


def score(net: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return (loss, logits)."""
    logits = net(batch[0])
    wide = logits.to(torch.promote_types(TYPE, torch.float32))
    return F.cross_entropy(wide, batch[1]) * FACTOR + SHIFT, logits


def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    value, logits = score(net, batch)
    ddp.record_scalar("mean logit", logits.double().mean())
    ddp.record_scalar("constant", 0.1)
    return value


def judged(net: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    value, logits = score(net, batch)
    return value, (logits.argmax(1) == batch[1]).double().mean()


OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=RATE, momentum=0.9),
    "adam": lambda ps: torch.optim.Adam(ps, lr=RATE),
}


def main() -> None:
    mode = DRAW.choice(MODES)
    ranks = 1 if mode == "solo" else DRAW.choice((1, 2, 2, 3, 5, 8))
    batch, epochs = DRAW.choice((1, 8, 16, 33)), DRAW.choice((1, 1, 2, 3))
    samples = DRAW.choice((ranks * batch + 1, 3 * ranks * batch + 1, 600, 601, 1500, 3000))
    tests = DRAW.choice((1, 2, 203, 204))
    told = f"{TYPE} scale={SCALE:g} loss={FACTOR:g}x{SHIFT:+g} {OPTIMIZER} rate={RATE:g} centred={CENTRED}"
    print(f"extremes {mode} x{ranks} n={samples} batch={batch} epochs={epochs} tests={tests} {told}", flush=True)
    measured = {"eval_step": judged, "eval_dataset": points(tests, 2), "metric": "accuracy"}
    cell = {"mode": mode, "world_size": ranks, "batch_size": batch, "epochs": epochs, "seed": NUMBER, **measured}
    train = points(samples, 1)
    ddp.Trainer(model, OPTIMIZERS[OPTIMIZER], loss, train, output=sys.argv[2], name="own", **cell).run().join()


if __name__ == "__main__":
    main()
