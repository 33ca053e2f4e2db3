"""Own the ranks that train together without a coordinator, and their collectives. Waits have a timeout. Knows no model."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from ddp.comm.background import Courier
from ddp.comm.store_exchange import NAMES, StoreExchange, TorchTransport, fresh_store, make_transport, open_store
from ddp.comm.transports.base import MEAN, SUM, ExchangeBroken, Wait
from ddp.comm.transports.gloo import OPS
from ddp.comm.transports.memory import Transport as Memory
from ddp.core.errors import OutOfResources, RankLost
from ddp.settings import DAY_S, number

TIMEOUT_S = 300.0
"""Default timeout of a collective, in seconds."""
AVG = "avg"
"""Another name for `mean`, as in torch."""
WIDEST = 16
"""Size in bytes of the largest number type: tensors that share a buffer begin at multiples of it."""
GRACE_S = 2.0
"""Seconds that other ranks have to notice a broken collective too."""
REMEDY = (
    "all ranks must do the same passes and collectives in the same order; one that has no batch left calls "
    "sync_gradients(samples=0) as often as the others have batches, one that evaluates alone takes the wrapper's .module"
)
_current: Group | None = None


class Group:
    """All ranks of this training, as seen by one of them. Call `init` in every rank to make it."""

    def __init__(
        self, rank: int, world_size: int, device: torch.device, store: Store, transport: str, timeout_s: float
    ) -> None:
        self.rank, self.world_size, self.device, self.timeout_s = rank, world_size, device, timeout_s
        store = fresh_store(store, rank, world_size)
        self._texts = StoreExchange(store, rank, world_size, timeout_s)
        self._transport, self._held = make_transport(transport, self._texts, store, device, rank, world_size, timeout_s)
        self.transport: str = self._transport.name
        """Transport of the collectives: `memory`, `gloo` or `nccl`."""
        self._regions = 0
        self._courier: Courier | None = None
        self._under_way: list[Callable[[], None]] = []
        self._unused: list[Tensor] = []
        self._process, self._closed, self._gone = os.getpid(), False, False

    def exchange(self, text: str) -> list[str]:
        """Return every rank's text, ordered by rank. Slow: for startup only. Raises RankLost."""
        self._check_open()
        return self._texts.exchange(text)

    def _check_open(self) -> None:
        if self._closed:
            raise RankLost(f"rank {self.rank}: this group is closed or broken; start the ranks anew")

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a flat tensor that is reduced without a copy. All ranks call this in the same order. Raises RankLost."""
        self._regions += 1
        try:
            return self._transport.empty(f"region{self._regions}", elements, dtype)
        except FileNotFoundError as error:  # the first rank that leaves deletes the ranks' folder
            raise self._broken(f"a rank has left ({error})") from error

    def release(self, tensors: Iterable[Tensor]) -> None:
        """Release tensors of `empty` once no collective is running. Does nothing in a forked copy of this process."""
        if isinstance(self._transport, Memory) and os.getpid() == self._process:
            self._unused += tensors
            unused: list[Tensor] = []
            if not self._under_way:
                unused, self._unused = self._unused, unused
            for tensor in unused:
                self._transport.release(tensor)

    def all_reduce(self, tensor: Tensor, op: str = SUM) -> None:
        """Reduce a contiguous tensor in place by `sum`, `mean` (or `avg`), `max`, `min` or `prod`, to the same bits on all
        ranks. Raises ValueError, RankLost."""
        op = MEAN if op == AVG else op
        if op not in OPS:
            raise ValueError(f"op must be one of {', '.join(OPS)}, not {op!r}")
        if not tensor.is_contiguous():
            raise ValueError("a tensor that is reduced in place must be contiguous: reduce tensor.contiguous()")
        if op == MEAN and not (tensor.is_floating_point() or tensor.is_complex()):
            raise ValueError(
                f"whole numbers ({str(tensor.dtype)[6:]}) have no mean of their type: reduce tensor.double()"
            )
        self.drain()
        self._carry_out(tensor.detach().view(-1), op)

    def start(self, tensor: Tensor, op: str = SUM) -> None:
        """Start an all-reduce, like torch's `async_op=True`. Do not touch `tensor` until `drain` returns."""
        if isinstance(self._transport, TorchTransport):
            with self._breaking():
                wait = self._transport.start(tensor, op)
            self._under_way.append(partial(self._await, wait))
        else:
            self._courier = self._courier or Courier()
            self._under_way.append(self._courier.submit(partial(self._carry_out, tensor, op)).result)

    def drain(self) -> None:
        """Wait until all started collectives have finished, which keeps their order. Raises RankLost."""
        under_way, self._under_way = self._under_way, []
        for each in under_way:
            each()
        if self._unused:
            self.release(())

    def _carry_out(self, tensor: Tensor, op: str) -> None:
        self._check_open()
        with self._breaking():
            self._transport.all_reduce(tensor, op)

    def _await(self, wait: Wait) -> None:
        with self._breaking():
            wait()

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        try:
            yield
        except (ExchangeBroken, OutOfResources, OSError) as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> RankLost:
        self._closed = True
        self._transport.leave()
        if isinstance(self._transport, TorchTransport):  # torch reports a socket error, not the rank
            late = self._texts.missing(GRACE_S)
            names = ", ".join(map(str, late))
            why = f"rank {names} is gone or did not come ({why})" if late else f"a collective broke ({why})"
        return RankLost(f"rank {self.rank} cannot go on: {why}; {REMEDY}")

    def broadcast(self, tensors: Sequence[Tensor] | Tensor, src: int = 0) -> None:
        """Send the values of rank `src` to all ranks, bit for bit. Raises ValueError, RankLost."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        if src not in range(self.world_size):
            raise ValueError(f"src={src!r} must be a rank from 0 to {self.world_size - 1}")
        if self.world_size == 1 or not tensors:
            return
        wire, places = self._wire([tensor.nbytes for tensor in tensors])
        with torch.no_grad():
            if self.rank == src:
                for tensor, place in zip(tensors, places, strict=True):
                    _as(place, tensor).copy_(tensor)
            self.all_reduce(wire)
            if self.rank != src:
                for tensor, place in zip(tensors, places, strict=True):
                    # `.data` does not raise the version: autograd may have saved a buffer for a backward pass to come.
                    tensor.data.copy_(_as(place, tensor))

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return every rank's tensor by rank, bit for bit: shape [world_size, *tensor.shape]. Shapes and types must be the
        same. Raises RankLost."""
        wire, places = self._wire([tensor.nbytes] * self.world_size)
        with torch.no_grad():
            _as(places[self.rank], tensor).copy_(tensor)
            if self.world_size > 1:
                self.all_reduce(wire)
            return torch.stack([_as(place, tensor) for place in places])

    def _wire(self, sizes: Sequence[int]) -> tuple[Tensor, Sequence[Tensor]]:
        """Return a buffer of zeros and its parts, one for each of `sizes` (in bytes). The buffer is int64: adding zeros
        keeps every bit of NaN and -0.0 too."""
        rooms = [-(-size // WIDEST) * WIDEST for size in sizes]
        wire = torch.zeros(sum(rooms) // 8, dtype=torch.int64, device=self.device)
        return wire, torch.split(wire.view(torch.uint8), rooms)

    def barrier(self) -> None:
        """Wait for all ranks. Raises RankLost."""
        self.all_reduce(torch.zeros(1, device=self.device))

    def close(self) -> None:
        """Leave the group. Ranks that still wait for this one get an error. A forked copy of this process does nothing."""
        global _current
        if os.getpid() != self._process:
            return
        if _current is self:
            _current = None
        if not self._gone:
            self._gone = self._closed = True
            atexit.unregister(self.close)
            if self._courier is not None:
                self._courier.stop()
            self._transport.close()
            self._held.close()
            self._texts.close()


def init(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    store: Store | None = None,
    transport: str = "auto",
    device: str | torch.device | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Group:
    """Join the other ranks and return the group. `DistributedDataParallel` and `wrap` use it by default.

    Rank and world size come from the arguments, else from torch's default process group, else from torchrun's environment
    (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). `store`: any store of `torch.distributed` to meet at instead.
    `transport`: `memory` (ranks of one host, on CPUs), `gloo`, `nccl`; `auto` takes the first that works. No collective
    waits longer than `timeout_s` for a rank. Raises ValueError for wrong arguments, RankLost if a rank does not come.
    """
    global _current
    if _current is not None:
        raise ValueError("ddp.init was called before in this process; close that group first (group.close())")
    if transport not in NAMES:
        raise ValueError(f"transport must be one of {', '.join(NAMES)}, not {transport!r}")
    rank, world_size = _place(rank, world_size)
    _check(rank, world_size, timeout_s)
    where = torch.device(device) if device is not None else _device(world_size)
    _current = make(rank, world_size, where, store or open_store(rank, world_size, timeout_s), transport, timeout_s)
    atexit.register(_current.close)
    return _current


def make(
    rank: int,
    world_size: int,
    device: torch.device,
    store: Store,
    transport: str = "auto",
    timeout_s: float = TIMEOUT_S,
) -> Group:
    """Make a group without making it the current one. Ranks may be threads of one process, each with its own group."""
    _check(rank, world_size, timeout_s)
    return Group(rank, world_size, device, store, transport, timeout_s)


def current(alone: bool = False) -> Group:
    """Return this process's group; make it from the environment if there is none. If the environment names no rank, raise
    ValueError, or with `alone` return a group of this process only."""
    if _current is None and alone and not (dist.is_initialized() or "RANK" in os.environ):
        return init(0, 1)
    return _current or init()


def get_rank() -> int:
    """Return this process's rank."""
    return current().rank


def get_world_size() -> int:
    """Return the number of ranks."""
    return current().world_size


def get_local_rank() -> int:
    """Return this process's index among the ranks of its host: torchrun's LOCAL_RANK, else its rank."""
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) if local.isdecimal() else current().rank


def _as(place: Tensor, tensor: Tensor) -> Tensor:
    """Return the part of a buffer that holds `tensor`, with its type and shape."""
    return place[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def _check(rank: int, world_size: int, timeout_s: float) -> None:
    number("timeout_s", timeout_s, 0.001, DAY_S)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1} (world_size={world_size}), not {rank}")


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size from the arguments, the default process group or the environment, in this order."""
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    variables = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not (variables[0].isdecimal() and variables[1].isdecimal()):
        raise ValueError(
            "nothing says which rank this is: start the script with torchrun --nproc-per-node=N, or call "
            "ddp.init(rank, world_size) with MASTER_PORT set (ddp.init(0, 1) for one process alone)"
        )
    return int(variables[0]), int(variables[1])


def _device(world_size: int) -> torch.device:
    """Return this rank's own GPU if the host has one for each of its ranks, else the CPU."""
    local, beside = (
        int(text) if (text := os.environ.get(name, "")).isdecimal() else otherwise
        for name, otherwise in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", world_size))
    )
    if torch.cuda.is_available() and torch.cuda.device_count() >= beside:
        return torch.device("cuda", local)
    return torch.device("cpu")
