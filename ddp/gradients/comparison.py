"""Compares replicas that must have the same bits after every step, to detect a flipped bit.

Owns when they are compared, and the error of a rank whose replica differs. The coordinator decides what happens to that
rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddp.comm.collectives import Collectives
from ddp.comm.transports.base import MAX
from ddp.core.anomalies.majority import strangers
from ddp.core.errors import Corrupted
from ddp.gradients.repetition import RepeatableSteps

PAIR = 2
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicaComparison:
    """One rank's part in the comparisons. All parameters are compared before every `every`-th step of a group; 0: never."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        collectives: Collectives,
        every: int,
        optimizer: torch.optim.Optimizer,
        ranks: int,
    ) -> None:
        self._parameters, self._collectives, self._every = parameters, collectives, every
        self._repeatable = RepeatableSteps(parameters, optimizer) if every else None
        """Used with two ranks, where there is no majority to tell whose parameters are right."""
        if self._repeatable is not None and ranks == PAIR:
            self._repeatable.mark()
        self._group = -1
        self._steps = 0
        """Number of steps that the group has begun."""

    def begin(self) -> None:
        """Begin a step. Raises Corrupted if this rank's parameters differ from those of most ranks, or if no majority
        agrees; ExchangeBroken."""
        group = self._collectives.generation
        if group != self._group:
            if self._repeatable is not None and self._group >= 0:
                self._repeatable.forget()
            self._group, self._steps = group, 0
        due = self._every and self._steps % self._every == 0
        self._steps += 1
        if due:
            self._compare()

    def _compare(self) -> None:
        members, rank = self._collectives.members, self._collectives.rank
        odd = strangers(self._gathered(digest(self._parameters)))
        if len(members) == PAIR and self._repeatable is not None:
            odd = self._named(odd, self._repeatable)
        if members.index(rank) not in odd:
            return
        others = ", ".join(str(member) for place, member in enumerate(members) if place not in odd)
        when = f"a bit has flipped in the last {self._every} steps"
        if others:
            whose = f"are not those of rank{'s' if ',' in others else ''} {others}, as they must be after every step"
            shown = "" if "," in others else ", and the same steps done again give others"
            raise Corrupted(f"its parameters {whose}{shown}: {when}")
        three = ", on three ranks" if len(members) == PAIR else ""
        raise Corrupted(
            f"the parameters of ranks {', '.join(map(str, members))} differ, and no majority says whose are right: {when}; "
            f"go on from a checkpoint of before, if there is one (resume=), or begin anew{three}"
        )

    def _gathered(self, value: int) -> list[int]:
        """Return the integers of all members of the group, in their order."""
        members = self._collectives.members
        values = torch.full((len(members),), torch.iinfo(torch.int64).min, device=self._collectives.device)
        values[members.index(self._collectives.rank)] = value
        self._collectives.all_reduce([values], MAX)
        return values.tolist()

    def _named(self, odd: tuple[int, ...], repeatable: RepeatableSteps) -> tuple[int, ...]:
        """Return which of two differing ranks does not have the parameters that its steps lead to; both if repetition
        cannot tell."""
        if not odd:
            repeatable.mark()
            return odd
        sound = self._gathered(int(repeatable.sound()))
        return odd if sum(sound) != 1 else (sound.index(0),)


@torch.no_grad()
def digest(tensors: Sequence[Tensor]) -> int:
    """Return a checksum that any single flipped bit changes: the sum of all values, read as integers."""
    total = sum(int(tensor.detach().view(_WHOLE[tensor.element_size()]).sum(dtype=torch.int64)) for tensor in tensors)
    return (total + 2**63) % 2**64 - 2**63
