"""Own state dicts of a sharded model and its optimizer: whole ones, and one rank's part; between any numbers of ranks.

A part contains names, shapes and ranges, so all parts together make a whole (`merge`), and a whole can be divided over any
number of ranks. Values are only copied, so they keep their bits.

    whole = full_state_dict(sharded)            on every rank: {"model": ..., "optimizer": ...}, as torch has them
    load_full_state_dict(sharded, whole)        at any world size, any kind of sharding
    part = sharded_state_dict(sharded)          this rank's, no communication
    whole = merge([part of rank 0, of rank 1, ...])
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddp.comm.collectives import Collectives
from ddp.replica.memory.extra_state import extra_state
from ddp.sharding.shards import Shard, cut
from ddp.sharding.zero1 import ShardedStep

StateDict = dict[str, Any]


def sharded_state_dict(sharded: ShardedStep) -> StateDict:
    """Return what this rank owns, by name, and buffers, parameters that are not sharded, and the extra state of modules.
    Raises NotPlain."""
    model, optimizer = sharded.site.model, sharded.site.optimizer
    names = {parameter: name for name, parameter in model.named_parameters()}
    owned: dict[str, StateDict] = {}
    for shard in sharded.shards:
        state = {key: _copy(value) for key, value in optimizer.state.get(shard.values, {}).items()}
        entry = {"start": shard.start, "stop": shard.stop, "values": shard.values.detach().clone(), "state": state}
        owned[names[shard.parameter]] = entry
    for group in sharded.groups:
        if not group.shared_out:
            owned |= {names[p]: _unsharded(p) for p in group.parameters}
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {
        "world_size": sharded.site.world_size,
        "rank": sharded.site.rank,
        "shapes": {name: list(shape) for name, shape in _shapes(sharded).items()},
        "owned": owned,
        "rest": {name: value.detach().clone() for name, value in _rest(sharded).items()} | extra_state(model),
        "aliases": _aliases(sharded),
        "groups": [
            setting | {"params": [names[p] for p in members]}
            for setting, members in zip(settings, sharded.before, strict=True)
        ],
    }


def merge(parts: Sequence[StateDict]) -> StateDict:
    """Join the parts of all ranks to `model` and `optimizer`, in the form of torch's state dicts. Raises ValueError if one
    is missing."""
    size = parts[0]["world_size"] if parts else 0
    ranks = sorted(part["rank"] for part in parts)
    if not parts or ranks != list(range(size)):
        raise ValueError(f"parts of ranks {ranks} do not make a whole of {size} ranks: give one of each")
    shapes = {name: torch.Size(shape) for name, shape in parts[0]["shapes"].items()}
    pieces: dict[str, list[StateDict]] = {name: [] for name in shapes}
    for part in sorted(parts, key=lambda each: each["rank"]):
        for name, entry in part["owned"].items():
            if not pieces[name] or entry["start"] >= pieces[name][-1]["stop"] > 0:
                pieces[name].append(entry)
    model = {name: _joined([entry["values"] for entry in parts], shapes[name], name) for name, parts in pieces.items()}
    model |= parts[0]["rest"]
    model |= {alias: model[name] for alias, name in parts[0]["aliases"].items()}
    state: dict[int, StateDict] = {}
    groups, number = [], 0
    for group in parts[0]["groups"]:
        for index, name in enumerate(group["params"], number):
            if parts := [entry for entry in pieces[name] if entry["state"]]:
                state[index] = _whole_state(parts, shapes[name], name)
        groups.append(group | {"params": list(range(number, number + len(group["params"])))})
        number += len(group["params"])
    return {"model": model, "optimizer": {"state": state, "param_groups": groups}}


def full_state_dict(sharded: ShardedStep) -> StateDict:
    """Return the whole `model` and `optimizer`, on every rank. All ranks must call it, between steps. Raises
    ExchangeBroken."""
    buffer = io.BytesIO()
    torch.save(sharded_state_dict(sharded), buffer)
    site, device = sharded.site, sharded.groups[0].device
    parts = _all(site.collectives, buffer.getvalue(), site.world_size, site.rank, device)
    return merge([torch.load(io.BytesIO(part), weights_only=True) for part in parts])


def load_full_state_dict(sharded: ShardedStep, whole: StateDict) -> None:
    """Load a whole state, saved with any world size and kind of sharding. All ranks must call it with the same state,
    between steps. Raises ValueError for the state of another model or optimizer."""
    optimizer, site = sharded.site.optimizer, sharded.site
    groups = whole["optimizer"]["param_groups"]
    if [len(group["params"]) for group in groups] != [len(members) for members in sharded.before]:
        raise ValueError("the state dict is of an optimizer with other parameter groups: make it as it was made then")
    with sharded.changeable_parameters():
        try:
            site.model.load_state_dict(whole["model"])
        except RuntimeError as error:
            raise ValueError(f"the state dict is of another model: {error}") from error
    shards = {shard.parameter: shard for shard in sharded.shards}
    for group, saved, members in zip(optimizer.param_groups, groups, sharded.before, strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
        for number, parameter in zip(saved["params"], members, strict=True):
            state, shard = whole["optimizer"]["state"].get(number), shards.get(parameter)
            if shard is None:
                continue
            optimizer.state.pop(shard.values, None)
            if state is not None:
                optimizer.state[shard.values] = _placed(state, sharded.shapes[parameter], shard)
    sharded.rebase()


def _placed(state: StateDict, shape: torch.Size, shard: Shard) -> StateDict:
    """Return the shard's part of a parameter's state, on the device where torch would have it: counters stay on the CPU."""
    part = cut(state, shape, shard.start, shard.stop)
    each = {k: isinstance(v, Tensor) and v.shape == shape and k != "step" for k, v in state.items()}
    return {key: value.to(shard.values.device) if each[key] else value for key, value in part.items()}


def _whole_state(parts: list[StateDict], shape: torch.Size, name: str) -> StateDict:
    whole: StateDict = {}
    for key, value in parts[0]["state"].items():
        each = (
            isinstance(value, Tensor) and key != "step" and value.dim() == 1 and len(value) == len(parts[0]["values"])
        )
        whole[key] = _joined([entry["state"][key] for entry in parts], shape, name) if each else value
    return whole


def _joined(values: list[Tensor], shape: torch.Size, name: str) -> Tensor:
    if sum(value.numel() for value in values) != shape.numel():
        raise ValueError(f"the parts of {name} do not make a whole")
    return torch.cat([value.reshape(-1) for value in values]).view(shape) if values else torch.empty(shape)


def _unsharded(parameter: Tensor) -> StateDict:
    values = parameter.detach().reshape(-1).clone()
    return {"start": 0, "stop": values.numel(), "values": values, "state": {}}


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _shapes(sharded: ShardedStep) -> dict[str, torch.Size]:
    return {name: sharded.shapes[parameter] for name, parameter in sharded.site.model.named_parameters()}


def _rest(sharded: ShardedStep) -> dict[str, Tensor]:
    """Return the buffers that are saved."""
    saved: dict[str, Tensor] = {}
    for prefix, module in sharded.site.model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                saved[f"{prefix}.{name}" if prefix else name] = buffer
    return saved


def _aliases(sharded: ShardedStep) -> dict[str, str]:
    """Return further names of shared parameters -> their first name."""
    model = sharded.site.model
    first = {parameter: name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[parameter] for name, parameter in every if first[parameter] != name}


def _all(collectives: Collectives, mine: bytes, world_size: int, rank: int, device: torch.device) -> list[bytes]:
    """Return every rank's bytes, on every rank."""
    sizes = torch.zeros(world_size, dtype=torch.int64, device=device)
    sizes[rank] = len(mine)
    collectives.all_reduce([sizes])
    parts = []
    for owner, size in enumerate(sizes.tolist()):
        # A sum of one value and zeros in int64 is exact, and every transport supports it.
        words = torch.zeros(-(-size // 8), dtype=torch.int64)
        if owner == rank:
            words.view(torch.uint8)[:size] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        words = words.to(device)
        collectives.all_reduce([words])
        parts.append(bytes(words.cpu().view(torch.uint8)[:size].numpy().tobytes()))
    return parts
