"""A replica of `mlp` that torchft synchronizes with others: DDP, LocalSGD or DiLoCo over gloo. Started by
`torchft_peer`.

    python benchmarks/torchft_rank.py METHOD REPLICA REPLICAS LIGHTHOUSE STEPS NOTES

Writes a line to NOTES for each event: `[seconds on the monotonic clock, event, step, participants, samples]`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

BEGAN = time.monotonic()

import torch  # noqa: E402  # what a process takes to import it counts
from torch import nn  # noqa: E402
from torch.distributed import TCPStore  # noqa: E402
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # noqa: E402
from torchft.local_sgd import DiLoCo, LocalSGD  # noqa: E402

from bench.models import load, make_task  # noqa: E402

SYNC_EVERY = 20
LIMIT = timedelta(seconds=20)


def batches(task: Any, replica: int, replicas: int, size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield this replica's batches: of every global batch in the order of one generator its slice, for ever."""
    source = task.train_data()
    generator = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(source), generator=generator)
        for begin in range(0, len(order) - size * replicas + 1, size * replicas):
            yield source.batch(order[begin + replica * size : begin + (replica + 1) * size])


def main() -> None:
    """Train until all have done so many steps."""
    method, replica, replicas, lighthouse, steps, path = sys.argv[1:]
    notes = open(path, "a", buffering=1)  # noqa: SIM115  # until the process ends

    def note(event: str, manager: Manager | None = None, samples: int = 0) -> None:
        known = (manager.current_step(), manager.num_participants()) if manager is not None else (0, 0)
        notes.write(json.dumps([time.monotonic(), event, *known, samples]) + "\n")

    notes.write(json.dumps([BEGAN, "began", 0, 0, 0]) + "\n")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    recipe = load("mlp").recipes["quick"]
    task = make_task("mlp", recipe, "data")
    model: nn.Module = task.model()
    optimizer = task.optimizer(list(model.parameters()))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LIMIT),
        load_state_dict=lambda state: (
            model.load_state_dict(state["model"]),
            optimizer.load_state_dict(state["optimizer"]),
        ),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        use_async_quorum=method == "ddp",
        timeout=LIMIT,
        quorum_timeout=LIMIT,
        connect_timeout=LIMIT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{replica}",
        hostname="127.0.0.1",
    )
    note("ready")
    size = recipe.batch_size
    around, step = _method(method, manager, model, optimizer)
    with around:
        for tensors in batches(task, int(replica), int(replicas), size):
            before = manager.current_step()
            step(lambda module, tensors=tensors: task.loss(module, tensors))
            note("step" if manager.current_step() > before or method != "ddp" else "undone", manager, size)
            if manager.current_step() >= int(steps):
                break
    note("end", manager)
    torch.save({name: value.detach() for name, value in model.state_dict().items()}, f"{path}.pt")
    notes.flush()
    os._exit(0)  # threads of the manager wait for what does not come any more


def _method(
    method: str, manager: Manager, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[AbstractContextManager[Any], Callable[[Callable[[nn.Module], torch.Tensor]], None]]:
    """Return what surrounds the loop, and a step of it."""
    module: nn.Module = model
    driver: torch.optim.Optimizer = optimizer
    around: AbstractContextManager[Any] = nullcontext()
    if method == "ddp":
        module, driver = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    elif method == "local_sgd":
        around = LocalSGD(manager, model, optimizer, SYNC_EVERY)
    else:
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        around = DiLoCo(manager, [model], optimizer, outer, SYNC_EVERY, pin_memory=False)

    def step(loss: Callable[[nn.Module], torch.Tensor]) -> None:
        driver.zero_grad()
        loss(module).backward()
        driver.step()

    return around, step


if __name__ == "__main__":
    main()
