"""Defines `TrainedState`, the result of a run, and `CheckpointInfo`, a checkpoint saved during a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddp.core.errors import EngineError, OutOfResources
from ddp.process.resource_errors import free
from ddp.replica.memory.final_state import place
from ddp.trainer.summary import RunSummary


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint on disk. `torch.load(path / "model.pt", weights_only=True)["state_dict"]` loads the
    model's state."""

    path: Path
    """Folder of the checkpoint. It is deleted once two later checkpoints exist."""
    epochs: int
    """Epochs that were complete when it was saved."""
    samples: int
    """Samples trained when it was saved, over all epochs."""


@dataclass(frozen=True, repr=False)
class TrainedState:
    """The trained model's tensors on the CPU, by their names in the model."""

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    extra: dict[str, Any] = field(default_factory=dict)
    """Extra state of modules (`get_extra_state`)."""
    run: RunSummary | None = field(default=None, compare=False)
    """Summary of the run that trained it."""
    tied: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of parameters that share memory with a parameter of an earlier name."""

    def __repr__(self) -> str:
        """Return its size, in one line."""
        return f"<TrainedState: {self._size}>"

    def __str__(self) -> str:
        """Return its size and the summary of its run."""
        return "\n".join([self._size, *(self.run.lines() if self.run is not None else ())])

    def _repr_html_(self) -> str:
        """Return its size and the summary of its run for a notebook, with a table of the epochs."""
        return f"<p>{self._size}</p>{self.run.html() if self.run is not None else ''}"

    @property
    def _size(self) -> str:
        own = [tensor.numel() for name, tensor in self.params.items() if name not in self.tied]
        tensors = "1 tensor" if len(own) == 1 else f"{len(own)} tensors"
        buffers = "1 buffer" if len(self.buffers) == 1 else f"{len(self.buffers)} buffers"
        return f"{sum(own):,} parameters in {tensors}, {buffers}"

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, buffers and extra state as one dict for `load_state_dict`."""
        return {**self.params, **self.buffers, **self.extra}


def tied_names(params: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the names of tensors with the same memory and shape as a tensor of an earlier name."""
    seen: dict[tuple[int, torch.Size], str] = {}
    first = {name: seen.setdefault((value.data_ptr(), value.shape), name) for name, value in params.items()}
    return frozenset(name for name, value in params.items() if value.numel() and first[name] != name)


def read_state(folder: Path, finished: Iterable[int]) -> TrainedState:
    """Return the state that the first of the `finished` ranks saved in `folder`. All ranks end with the same state, the
    last average. Raise OutOfResources if there was no room for any, EngineError if no rank has finished."""
    ranks = sorted(finished)
    for path in (path for path in (place(folder, rank) for rank in ranks) if path.is_file()):
        state = torch.load(path, map_location="cpu", weights_only=False)
        params = {name: value for name, value in state.items() if isinstance(value, nn.Parameter)}
        others = {name: value for name, value in state.items() if name not in params}
        buffers = {name: value for name, value in others.items() if isinstance(value, Tensor)}
        return TrainedState(
            # A rank's tensors are views of one flat tensor; the copies own their memory.
            {name: value.detach().clone() for name, value in params.items()},
            {name: value.clone() for name, value in buffers.items()},
            {name: value for name, value in others.items() if name not in buffers},
            tied=tied_names(params),
        )
    if ranks:
        remedy = "make more room (docker: --shm-size; TMPDIR names a folder on disk), and save checkpoints"
        raise OutOfResources(
            f"no rank could write the trained model to {place(folder, ranks[0])}, {free(folder)}: {remedy}"
        )
    raise EngineError("no rank has left its state")
