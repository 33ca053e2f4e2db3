"""A rank's parts of checkpoints: what it saves, and how it resumes from them, with validation.

Knows neither the coordinator nor when a checkpoint is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddp import regular_files
from ddp.checkpoint import checkpoint
from ddp.checkpoint.checkpoint import LARGEST_PART, File, InvalidCheckpoint
from ddp.checkpoint.identity import Origin, origin, other_epochs
from ddp.checkpoint.same_data import SameData
from ddp.checkpoint.validity import MOST
from ddp.core.messages.commands import Save
from ddp.core.messages.event_parts import Lasting
from ddp.data.seeded import others, set_others
from ddp.replica.memory.extra_state import extra_state, set_extra_state
from ddp.replica.memory.flat import savable
from ddp.replica.memory.plain import NotPlain
from ddp.replica.optim.optimizers import Settings, tensors_kept
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from ddp.tensor_digest import tensor_digest

LACKS = "a callback had set a schedule, which no checkpoint holds: rates go by the run's own until a callback sets one again"
AMID = "an epoch goes on, and its callback is not called again: what that changed outside the model is as at the start"
COUNTERS = ("begun", "steps", "version")
"""A rank's counters: last epoch begun, steps, averages received."""

CALLED = {
    "others": "random numbers",
    "loss_scale": "factor of the loss",
    "frozen": "frozen parameters",
    "in_eval": "modules in eval mode",
}
"""Names of entries of a rank's part in messages."""

Recut = Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
"""Optimizer states of all ranks -> optimizer state of this rank, for another number of ranks."""


class RankParts:
    """One rank's parts. Loads the model's tensors on construction, because a backend may copy or shard them; `restore`
    loads the rest."""

    def __init__(self, job: Job, rank: int, replica: Replica) -> None:
        """Load the model's part if the run resumes. Raises InvalidCheckpoint for a checkpoint of another model or other
        data."""
        self._job, self._rank, self._replica = job, rank, replica
        self._data = SameData(*replica.data)
        self._source = checkpoint.resume(job, rank)
        if self._source is not None:
            part = load(self._source.path / checkpoint.MODEL, self._source.origin(None))
            copy_into("parameters and buffers", replica.state.tensors, part.get("tensors"))
            before, identity = self._source.coordinator.epoch_samples, self._source.manifest.identity
            if difference := other_epochs(before, replica.samples, identity, job, replica.task.drop_last):
                raise InvalidCheckpoint(difference)
            replica.add_note(self._data.check(part.get("data")))
        self.lasting: Lasting = ()
        """Digests of the last saved or restored part, by name."""
        changing = not self._data.lasting or replica.task.epoch_callback is not None
        if self._source is None and job.checkpoints is not None and not rank and changing:
            self._data.prints()  # before training, which may change the data

    def save(self, order: Save, counters: Sequence[int], kept: Sequence[Tensor]) -> tuple[tuple[File, ...], str]:
        """Save this rank's part, and the model if `order` says so. `kept`: tensors that the backend keeps between averages.
        Return (files, ""), or ((), error)."""
        folder, replica = self._job.checkpoint_folder, self._replica
        assert folder is not None
        state = {
            **{
                "optimizer": replica.optimizer.state_dict(),
                "settings": replica.settings,
                "own_rates": replica.rates.own,
            },
            **self._rest(counters),
            "of": origin(self._job.run, order.index, self._rank),
        }
        try:
            state["extra"] = extra_state(replica.model)
            files = [checkpoint.save(folder, order.index, checkpoint.rank_file(self._rank), state)]
            if order.model:
                files.append(checkpoint.save(folder, order.index, checkpoint.MODEL, self._model(order, kept)))
        except OSError as error:
            return (), f"{error.strerror or error}: {error.filename or folder}"
        except NotPlain as error:
            return (), str(error)
        return tuple(files), ""

    def digests(self, order: Save) -> tuple[str, str]:
        """Return the digests of the model and of the optimizer's tensors, as they are to be saved. Empty if this rank does
        not save the model and does not compare it, and if the optimizer's class saves its state in another form."""
        replica = self._replica
        own = tensors_kept(replica.optimizer)
        model = tensor_digest(replica.state.tensors) if order.model or self._job.compare else ""
        return model, "" if own is None else tensor_digest(own)

    def _rest(self, counters: Sequence[int]) -> dict[str, Any]:
        """Return the other entries of a rank's part, and note their digests."""
        replica = self._replica
        rest = {"rates": replica.rates.capture(), "others": others(), **dict(zip(COUNTERS, counters, strict=True))}
        rest |= replica.passes.capture() | _switches(replica.model)
        self.lasting = tuple((CALLED.get(name, name), _digest(rest[name])) for name in sorted(rest))
        return rest

    def _model(self, order: Save, kept: Sequence[Tensor]) -> dict[str, Any]:
        # `state_dict` has views of the same memory, for users who want the model only; it is saved once.
        named = {name: v.detach() for name, v in savable(self._replica.model).items() if isinstance(v, Tensor)}
        named |= extra_state(self._replica.model)
        about = {"of": origin(self._job.run, order.index, None), "data": self._data.prints()}
        return {"tensors": self._replica.state.tensors, "kept": list(kept), "state_dict": named, **about}

    def restore(self, kept: Sequence[Tensor], recut: Recut | None = None) -> tuple[int, int, int] | None:
        """Load the rank's own part into the replica, and the backend's tensors into `kept`. Return the counters; None if
        the run does not resume. `recut`: see `TrainingLoop.restore`. Raises InvalidCheckpoint."""
        if self._source is None:
            return None
        replica, path = self._replica, self._source.part(self._rank)
        model = load(self._source.path / checkpoint.MODEL, self._source.origin(None))
        part = load(path, self._source.origin(self._rank))
        copy_into("averages", kept, model.get("kept"))
        try:
            if recut is not None and self._source.manifest.identity.world_size != self._job.world_size:
                members = self._source.manifest.members
                states = [load(self._source.part(rank), self._source.origin(rank))["optimizer"] for rank in members]
                part["optimizer"] = recut(states)
            load_optimizer(replica.optimizer, replica.settings, part)
            for own, begun in zip(replica.rates.own, part.get("own_rates", replica.rates.own), strict=True):
                if own != begun:  # earlier versions did not save them
                    raise ValueError(f"it was begun with lr={begun:g}, this one has {own:g}")
            if self._source.is_own(self._rank):
                set_others(part["others"])
            replica.passes.restore(part)
            replica.add_note(_set_extra_state(replica.model, part.get("extra", {}), path))
            _set_switches(replica.model, part)
            if replica.rates.restore(part["rates"]):
                replica.add_note(LACKS)
            begun, steps, version = counters = tuple(part[name] for name in COUNTERS)
            if not all(isinstance(n, int) and -1 <= n <= MOST for n in counters) or begun >= self._job.epochs:
                raise ValueError(f"counters {list(counters)}")
            amid = (begun + 1) * replica.samples > self._source.coordinator.samples
            if amid and replica.task.epoch_callback is not None:
                replica.add_note(AMID)
            self._rest(counters)
            return begun, steps, version
        except InvalidCheckpoint:
            raise
        except Exception as error:  # optimizers raise different errors for a state that does not fit
            raise InvalidCheckpoint(
                f"{path}: not the state of this optimizer ({_line(error)}); go on with what it was begun with, or begin "
                "anew"
            ) from error


def load(path: Path, of: Origin) -> dict[str, Any]:
    """Return a part, on the CPU. Raises InvalidCheckpoint if the file is not a dict of tensors and plain containers, or has
    another origin than `of`."""
    try:
        with regular_files.opened(path, LARGEST_PART) as file:
            part = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler may raise any error
        raise InvalidCheckpoint(f"{path}: not a part of a checkpoint ({_line(error)})") from error
    if not isinstance(part, dict):
        raise InvalidCheckpoint(f"{path}: not a part of a checkpoint")
    if part.get("of") != of:
        raise InvalidCheckpoint(
            f"{path}: {_described(part.get('of'))} lies where {_described(of)} belongs; put it back, or begin anew"
        )
    return part


def _switches(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of the parameters that are frozen, and of the modules in eval mode."""
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    return {"frozen": frozen, "in_eval": [name for name, module in model.named_modules() if not module.training]}


def _set_switches(model: nn.Module, part: dict[str, Any]) -> None:
    """Freeze and set to eval mode what was so when `part` was saved, and nothing else. Earlier versions did not save it."""
    if "frozen" not in part:
        return
    frozen, in_eval = set(part["frozen"]), set(part["in_eval"])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)
    for name, module in model.named_modules():
        module.training = name not in in_eval


def _digest(value: Any) -> str:
    """Return the digest of numbers in plain containers."""
    return sha256(repr(value).encode()).hexdigest()[:16]


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _described(of: Any) -> str:
    if not isinstance(of, dict):
        return "a part of no checkpoint"
    what = "the model" if of.get("rank") is None else f"the part of rank {of['rank']}"
    return f"{what} of checkpoint {of.get('index')} of run {of.get('run')}"


def copy_into(name: str, into: Sequence[Tensor], values: Any) -> None:
    """Copy tensors to others of equal shapes and types. Raises InvalidCheckpoint."""
    fits = isinstance(values, list) and len(values) == len(into)
    for own, other in zip(into, values, strict=True) if fits else ():
        fits &= isinstance(other, Tensor) and _form(own) == _form(other)
    if not fits:
        raise InvalidCheckpoint(
            f"the checkpoint's {name} are not those of this model; go on with its own model, or begin anew"
        )
    with torch.no_grad():
        for own, other in zip(into, values, strict=True):
            own.copy_(other)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout


def load_optimizer(optimizer: torch.optim.Optimizer, made_with: Settings, part: dict[str, Any]) -> None:
    """Load the optimizer's state. Raises ValueError, among others, for the state of another kind of optimizer, which
    `load_state_dict` accepts silently, and for a state saved with other settings, which it would restore."""
    optimizer.load_state_dict(part["optimizer"])
    for own, group, begun in zip(made_with, optimizer.param_groups, part["settings"], strict=True):
        if lost := own.keys() - group.keys():
            raise ValueError(f"it has no {', '.join(sorted(lost))}")
        for name in own.keys() & begun.keys():  # another version of torch may have other settings
            if begun[name] != own[name]:
                raise ValueError(f"it was begun with {name}={begun[name]}, this one has {own[name]}")


def _set_extra_state(model: nn.Module, state: dict[str, Any], path: Path) -> str:
    """Return the note of `set_extra_state`. Raises InvalidCheckpoint for whatever a module raises."""
    try:
        return set_extra_state(model, state)
    except Exception as error:
        raise InvalidCheckpoint(f"{path}: a module refused its extra state ({_line(error)})") from error
