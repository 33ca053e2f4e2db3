"""torchft's group of ranks as a transport: each rank is a replica group of its own, under a `torchft.Manager`.

A group forms as a quorum of the lighthouse, over torchft's gloo. Every quorum is preceded by a meeting of the members in
shared memory: it notices a rank that is gone or has left at once, while the lighthouse would wait for its heartbeat. torchft
reports errors by a vote, `should_commit`; here a lost vote raises ExchangeBroken. Steps of torchft are numbered from the
group's generation on, so that members agree and none takes another's state: the engine transfers it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp, TCPStore  # what torch.distributed exports
from torchft import Manager, ProcessGroupGloo

from ddp.backends.torchft_lighthouse import HOST, LOOK_S, address
from ddp.comm.collectives import SEQ
from ddp.comm.transports import memory
from ddp.comm.transports.base import MAX, SUM, ExchangeBroken, ShardRange, TransportConfig, Wait

OPS = {SUM: ReduceOp.SUM, MAX: ReduceOp.MAX}
CONNECT = timedelta(seconds=10)
PATIENCE_S = 2.0
"""Seconds to ask again for a quorum that lacks a member: longer than the lighthouse waits for a heartbeat."""
ELSEWHERE = (torch.bool, torch.int16, torch.uint16, torch.uint32)
"""Types that gloo does not reduce; int64 holds their values."""
logging.getLogger("torchft").setLevel(logging.CRITICAL)  # what it logs as errors is raised here


class GroupManager(Manager):  # type: ignore[misc]  # not known where torchft is not installed
    """A manager that raises ExchangeBroken unless every quorum has all members of the present group."""

    def __init__(self, config: TransportConfig, meeting: memory.Transport, limit: timedelta) -> None:
        self._meeting, self.members = meeting, 0
        self.group = ProcessGroupGloo(timeout=limit)
        self._own_store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        super().__init__(
            self.group,
            load_state_dict=None,
            state_dict=None,
            min_replica_size=1,
            use_async_quorum=False,
            timeout=limit,
            quorum_timeout=limit,
            connect_timeout=CONNECT,
            rank=0,
            world_size=1,
            store_addr=HOST,
            store_port=self._own_store.port,
            lighthouse_addr=address(config.folder, limit.total_seconds()),
            replica_id=f"rank_{config.rank}",
            hostname=HOST,
            init_sync=False,
        )

    def start_quorum(self, *args: Any, **kwargs: Any) -> None:
        """Meet the members, then form a quorum with them. Raises ExchangeBroken.

        The lighthouse may not know of a member yet, or have missed its heartbeats: ask again for a while."""
        self._meeting.fence()
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                super().start_quorum(*args, **kwargs)
                present = self.num_participants()
            except (RuntimeError, TimeoutError) as error:
                raise ExchangeBroken(f"torchft: {error}") from error
            if present == self.members:
                break
            if time.monotonic() > until:
                raise ExchangeBroken(f"torchft found {present} of {self.members} ranks")
            time.sleep(LOOK_S)
        self.check()

    def register_state_dict_fn(self, key: str, load_state_dict: Any, state_dict: Any) -> None:
        """Do nothing: ranks take state from the engine."""

    def check(self) -> None:
        """Raise ExchangeBroken if an error was reported since the last quorum."""
        if (error := self.errored()) is not None:
            raise ExchangeBroken(f"torchft: {error.original_exception}")

    def commit(self) -> None:
        """Vote. Raises ExchangeBroken if the step is not to be committed."""
        try:
            committed = self.should_commit()
        except (RuntimeError, TimeoutError) as error:
            raise ExchangeBroken(f"torchft: {error}") from error
        if not committed:
            self.check()
            raise ExchangeBroken("torchft did not commit")

    def dissolve(self) -> None:
        """Leave the group; the next quorum makes a new one even of the same ranks."""
        self._commit_failures += 1
        self.group.abort(errored=False)


class Transport:
    """A rank's side."""

    name = "torchft"

    def __init__(self, meeting: memory.Transport, deadline_s: float) -> None:
        self.config, self._meeting, self._met = meeting.config, meeting, False
        self._limit = timedelta(seconds=deadline_s)

    @cached_property
    def manager(self) -> GroupManager:
        """The manager. Made with the first group: the lighthouse waits for every rank that has one."""
        return GroupManager(self.config, self._meeting, self._limit)

    @property
    def _begun(self) -> bool:
        return "manager" in vars(self)

    def empty(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Allocate ordinary memory."""
        return torch.empty(elements, dtype=dtype)

    def join(self, members: Sequence[int], generation: int, lives: Sequence[int] = ()) -> None:
        """Form the group; ranks meet in the first collective."""
        self.leave()
        self._meeting.join(members, generation, lives)
        self.manager.members = len(members)
        self.manager.load_state_dict({"step": generation * SEQ, "batches_committed": 0})

    def meet(self) -> None:
        """Form a quorum of the members. Raises ExchangeBroken."""
        self.manager.start_quorum()
        self._met = True

    def all_reduce(self, tensor: Tensor, op: str = SUM) -> None:
        """Reduce through the manager, in the present quorum or in a first one."""
        if not self._met:
            self.meet()
        wide = tensor.to(torch.int64) if tensor.dtype in ELSEWHERE else tensor
        self.manager.allreduce(wide, reduce_op=OPS[op]).wait()
        self.manager.check()
        if wide is not tensor:
            tensor.copy_(wide)

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Raises NotImplementedError: no backend of torchft's shards."""
        raise NotImplementedError

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Raises NotImplementedError."""
        raise NotImplementedError

    def fence(self) -> None:
        """Wait for all members. Raises ExchangeBroken."""
        self._meeting.fence()

    def leave(self) -> None:
        """Break up the group; ranks that wait in it get an error."""
        self._met = False
        if self._begun:
            self.manager.dissolve()
        self._meeting.leave()

    def close(self) -> None:
        """Leave after training."""
        self._meeting.close()
        if self._begun:
            with suppress(RuntimeError):
                self.manager.shutdown(wait=False)
