"""Compares the replicas of ranks that hold the same bits after every step, so that a flipped bit shows.

Owns when they are compared, and what a rank raises whose replica is not as the others'. What becomes of such a rank is the
coordinator's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddp.comm.collectives import Collectives
from ddp.comm.transports.base import MAX
from ddp.core.errors import Corrupted
from ddp.core.majority import strangers

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicaComparison:
    """One rank's part: every `every` steps of a group all parameters are compared, before the step; 0: never."""

    def __init__(self, parameters: Sequence[Tensor], collectives: Collectives, every: int) -> None:
        self._parameters, self._collectives, self._every = parameters, collectives, every
        self._group = -1
        self._steps = 0
        """Steps that the group has begun."""

    def begin(self) -> None:
        """Begin a step. Raises Corrupted if this rank's parameters are not those of most ranks, or if most ranks have no
        parameters in common; ExchangeBroken."""
        group = self._collectives.generation
        if group != self._group:
            self._group, self._steps = group, 0
        due = self._every and self._steps % self._every == 0
        self._steps += 1
        if due:
            self._compare()

    def _compare(self) -> None:
        members, rank = self._collectives.members, self._collectives.rank
        digests = torch.full((len(members),), torch.iinfo(torch.int64).min, device=self._collectives.device)
        digests[members.index(rank)] = digest(self._parameters)
        self._collectives.all_reduce([digests], MAX)
        odd = strangers(digests.tolist())
        if members.index(rank) not in odd:
            return
        others = ", ".join(str(member) for place, member in enumerate(members) if place not in odd)
        when = f"a bit has flipped in the last {self._every} steps"
        if others:
            raise Corrupted(f"its parameters are not those of ranks {others}, as they must be after every step: {when}")
        raise Corrupted(
            f"the parameters of ranks {', '.join(map(str, members))} differ, and no majority says whose are right: {when}; "
            "go on from a checkpoint (resume=), or train on three ranks"
        )


@torch.no_grad()
def digest(tensors: Sequence[Tensor]) -> int:
    """Return a number that is another when one bit of a tensor is: the sum of all values, read as whole numbers."""
    total = sum(int(tensor.detach().view(_WHOLE[tensor.element_size()]).sum(dtype=torch.int64)) for tensor in tensors)
    return (total + 2**63) % 2**64 - 2**63
