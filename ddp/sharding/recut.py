"""Redistributes the shards of an optimizer's state, from those of a run with another number of ranks.

Values are only copied. Knows no file and no transport.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddp.sharding.partition import Layout
from ddp.sharding.zero1 import ShardedStep

StateDict = dict[str, Any]
Piece = tuple[int, int, Mapping[str, Any]]
"""(first element, end, state of these elements of a parameter)."""


def recut(sharded: ShardedStep, states: Sequence[StateDict]) -> StateDict:
    """Return this rank's state dict of the optimizer. `states`: the state dicts of ranks 0 to n - 1 of a run with n
    ranks."""
    pieces: dict[nn.Parameter, list[Piece]] = {}
    for rank, state in enumerate(states):
        stretches, number = _stretches(sharded, len(states), rank), 0
        for members in sharded.before:
            for parameter in members:
                if parameter in stretches:
                    pieces.setdefault(parameter, []).append((*stretches[parameter], state["state"].get(number, {})))
                    number += 1
    shards = {shard.parameter: shard for shard in sharded.shards}
    mine: dict[int, StateDict] = {}
    groups, number = [], 0
    for settings, members in zip(states[0]["param_groups"], sharded.before, strict=True):
        own = [shards[parameter] for parameter in members if parameter in shards]
        for index, shard in enumerate(own, number):
            if entry := _between(pieces[shard.parameter], shard.start, shard.stop):
                mine[index] = entry
        groups.append({**settings, "params": list(range(number, number + len(own)))})
        number += len(own)
    return {**states[0], "state": mine, "param_groups": groups}


def _stretches(sharded: ShardedStep, world_size: int, rank: int) -> dict[nn.Parameter, tuple[int, int]]:
    """Return the range of each sharded parameter that `rank` has in a run of `world_size` ranks."""
    stretches = {}
    for group in sharded.groups:
        layout = Layout(tuple(shape.numel() for shape in group.shapes), world_size)
        for index, start, stop in layout.fragments(rank) if group.shared_out else ():
            stretches[group.parameters[index]] = start, stop
    return stretches


def _between(pieces: Sequence[Piece], first: int, last: int) -> StateDict:
    """Return the state of elements [first, last) of a parameter, from all of its pieces."""
    state: StateDict = {}
    for key, value in pieces[0][2].items():
        start, stop, _ = pieces[0]
        if not (isinstance(value, Tensor) and key != "step" and value.shape == (stop - start,)):
            state[key] = value  # a value for the whole parameter
            continue
        parts = [
            each[key][max(first, start) - start : min(last, stop) - start]
            for start, stop, each in pieces
            if start < last and stop > first
        ]
        state[key] = torch.cat(parts)
    return state
