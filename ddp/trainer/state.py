"""`TrainedState`: what a run ends with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddp.core.errors import EngineError


@dataclass(frozen=True)
class TrainedState:
    """The trained model, on the CPU, by the names that the model gives its tensors."""

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    extra: dict[str, Any] = field(default_factory=dict)
    """What modules save besides (`get_extra_state`)."""

    def state_dict(self) -> dict[str, Any]:
        """Return all of it, as `load_state_dict` takes it."""
        return {**self.params, **self.buffers, **self.extra}


def read_state(folder: Path, finished: Iterable[int]) -> TrainedState:
    """Return the state that the first of the `finished` ranks has left in `folder`. All have left the same: the last
    average."""
    for rank in sorted(finished):
        state = torch.load(folder / f"state-{rank}.pt", map_location="cpu", weights_only=False)
        params = {name: value for name, value in state.items() if isinstance(value, nn.Parameter)}
        others = {name: value for name, value in state.items() if name not in params}
        buffers = {name: value for name, value in others.items() if isinstance(value, Tensor)}
        return TrainedState(
            # Ranks keep everything in one tensor; here each owns its memory.
            {name: value.detach().clone() for name, value in params.items()},
            {name: value.clone() for name, value in buffers.items()},
            {name: value for name, value in others.items() if name not in buffers},
        )
    raise EngineError("no rank has left its state")
