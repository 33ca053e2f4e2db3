"""Repeats a step in plain PyTorch: zero the gradients, forward, backward, clip, step.

For a step of several ranks it follows the documents: gradients are the mean over the global batch, each rank's forward
pass has its own slice, and buffers change by the mean of the ranks' changes. Must not use the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bench.audit.bundled.definitions import defined, is_near
from bench.audit.documented.rules import Rules, autocast, micro_ends, norm_of, own_gradients, total_of, unscale
from bench.audit.documented.schedules import stepped
from bench.audit.documented.seeds import step_seed
from bench.audit.kept_files import BUFFERS, OPTIMIZER, PARAMETERS, Incomplete, Name
from bench.audit.repeated.step_scalars import Collected, Totals
from ddp.replica.task import Task

State = dict[Name, Tensor]
Reading = Callable[[int, int, int], Any]
"""(epoch, start, stop) -> the model's input for these positions."""
Work = Sequence[tuple[int, int]]
"""(start, stop) positions of the batches of one rank."""


@dataclass(frozen=True)
class Done:
    """Result of repeated steps; `after` and `moves` are empty until the last one."""

    losses: list[list[float]]
    """Mean losses, [rank][batch]."""
    undefined: tuple[tuple[float, float], ...] = ()
    """(mean loss by the task, mean loss by definition) of the batches in which they differ."""
    scale: tuple[float, int] = (1.0, 0)
    """(Loss scale after the step, steps since it changed), in fp16."""
    norms: tuple[float, ...] = ()
    """Norm of the gradients of each step before clipping, over the parameters of the optimizers."""
    gradient_bytes: tuple[tuple[int, ...], ...] = ()
    """Bytes of the gradients of each step, unless one is sparse: of all, and with memory that they shared counted once."""
    metrics: tuple[float, ...] = ()
    """Sum of the metric over each rank's samples, by definition; NaN if no definition is known."""
    scalars: tuple[Totals, ...] = ()
    """What the steps of each rank recorded with `record_scalar`."""
    after: State = field(default_factory=dict)
    moves: State = field(default_factory=dict)
    """Change of each parameter."""


class Bench:
    """A model of the task on a device, which repeats steps."""

    def __init__(self, task: Task, model: nn.Module, rules: Rules, reading: Reading, device: torch.device) -> None:
        self.task, self.rules, self.device, self._read = task, rules, device, reading
        self.model = model.to(device)
        self._schedule = stepped(task.schedule)
        self.parameters = dict(self.model.named_parameters())
        self.buffers = dict(self.model.named_buffers())
        self.outputs: Any = None
        """Output of the last forward pass."""
        self.model.register_forward_hook(self._note)
        # `torch.manual_seed` records a traceback for each unused kind of device: most of a small step's time.
        self._seed = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
        self._training = [(module, module.training) for module in self.model.modules()]
        self._undefined: list[tuple[float, float]] = []
        self._scale, self._metrics, self._shaken, self._held = 1.0, list[float](), False, 0
        self._scalars: list[Totals] = []
        self.optimizer_bytes: int | None = None
        """Bytes of the optimizer's state after the last repeated step; None: there was none."""
        self.gradient_bytes: int | None = None
        """Bytes of the gradients in that step, without sparse ones."""
        self.initial = {name: tensor.clone() for name, tensor in self.state(None).items()}

    @cached_property
    def test_data(self) -> Any:
        """The test set, read once."""
        return self.task.eval_data()

    def _note(self, model: nn.Module, given: Any, outputs: Any) -> None:
        self.outputs = outputs

    def rates(self, seen: float) -> list[float]:
        """Return the learning rates of the parameter groups after all ranks have seen `seen` samples."""
        factor = max(self._schedule(min(seen / (self.rules.epochs * self.rules.samples), 1.0)), 0.0)
        return [rate * factor * self.rules.lr_scale for rate in self._own_rates]

    @cached_property
    def _own_rates(self) -> list[float]:
        """Return the rates of a new optimizer, created only once, as every report and step is compared with them."""
        optimizers = several(self.task.optimizer(list(self.model.parameters())))
        return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]

    @torch.no_grad()
    def load(self, state: Mapping[Name, Tensor], kinds: Iterable[str] = (PARAMETERS, BUFFERS)) -> None:
        """Copy a state into the model. Raises Incomplete if the state lacks a tensor."""
        for kind in kinds:
            own = self.parameters if kind == PARAMETERS else self._present()
            for name, tensor in own.items():
                value = state.get(Name(kind, name))
                if value is None or value.shape != tensor.shape:
                    raise Incomplete(f"{Name(kind, name)} was not kept as the model has it")
                tensor.copy_(value)

    def _present(self) -> dict[str, Tensor]:
        now = dict(self.model.named_buffers())  # a forward pass may replace them; a cache that grows is no state
        return {n: now[n] if n in now and now[n].numel() == made.numel() else made for n, made in self.buffers.items()}

    def state(self, optimizers: Sequence[Any] | None) -> State:
        """Return the values of parameters and buffers, and the optimizers' state."""
        state: State = {Name(PARAMETERS, name): p.detach() for name, p in self.parameters.items()}
        state |= {Name(BUFFERS, name): b.detach() for name, b in self._present().items()}
        names = {parameter: name for name, parameter in self.parameters.items()}
        for optimizer in optimizers or ():
            for parameter, values in optimizer.state.items():
                for key, value in values.items():
                    if isinstance(value, (bool, int, float)):
                        value = torch.tensor(value, dtype=torch.float64)
                    if isinstance(value, Tensor):
                        state[Name(OPTIMIZER, names[parameter], key)] = value.detach().to_dense()
        return state

    def begin(self, before: Mapping[Name, Tensor], shake: float = 0.0, seed: int = 1) -> None:
        """Take over the state `before`, from which `step` goes on, with new optimizers. `shake`: relative perturbation
        of each parameter, with signs drawn from `seed`."""
        self.load(before)
        self._shaken = shake > 0.0
        if shake:
            self.shake(shake, seed)
        self._optimizers = several(self.task.optimizer(list(self.model.parameters())))
        self._take_state(self._optimizers, before)

    def step(
        self,
        epoch: int,
        ranks: Sequence[Work],
        seen: float,
        together: bool = False,
        scale: tuple[float, int] = (1.0, 0),
    ) -> Done:
        """Perform the next step. `together`: it is a step of all ranks; `scale`: (loss scale, steps since it changed)."""
        self._set_modes()
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        for group, rate in zip(groups, self.rates(seen), strict=True):
            group["lr"] = rate
        nn.Module.zero_grad(self.model)
        self._scale, self._undefined, self._metrics = scale[0], [], [0.0] * len(ranks)
        self._scalars = [{} for _ in ranks]
        losses = self._gradients(epoch, ranks, together)
        owned = [parameter for group in groups for parameter in group["params"]]
        moves_on, scale = unscale(self.rules.step, owned, scale)
        norm = norm_of(parameter.grad for parameter in owned if parameter.grad is not None)
        if self.rules.max_grad_norm is not None and moves_on:
            nn.utils.clip_grad_norm_(owned, self.rules.max_grad_norm)
        for optimizer in self._optimizers if moves_on else ():
            optimizer.step()
        self._shaken = False  # only the state before the first step is perturbed
        having = [p for p in self.parameters.values() if p.grad is not None]
        self._sparse = any(p.grad is not None and p.grad.is_sparse for p in having)
        self.gradient_bytes = None if self._sparse else sum(p.nbytes for p in having)
        own = self._held if len(ranks) == 1 else self.gradient_bytes  # the gradients of several are sums
        sizes = () if self.gradient_bytes is None or own is None else ((self.gradient_bytes, own),)
        return Done(losses, tuple(self._undefined), scale, (norm,), sizes, tuple(self._metrics), tuple(self._scalars))

    def after(self) -> State:
        """Return a copy of the present state."""
        kept = [each for optimizer in self._optimizers for state in optimizer.state.values() for each in state.values()]
        size = sum(value.numel() * value.itemsize for value in kept if isinstance(value, Tensor))
        self.optimizer_bytes = None if self._sparse else size  # nor is the state of the usual size
        return {name: tensor.clone() for name, tensor in self.state(self._optimizers).items()}

    def batch(self, start: int, stop: int) -> Any:
        """Return the model's input at these positions of the first epoch."""
        return self._read(0, start, stop)

    def _gradients(self, epoch: int, ranks: Sequence[Work], together: bool) -> list[list[float]]:
        """Compute the gradients of all ranks' batches and update the buffers; return the losses."""
        shared = len(ranks) > 1
        before = {Name(BUFFERS, n): b.detach().clone() for n, b in self._present().items()} if shared else {}
        sizes = [sum(stop - start for start, stop in work) for work in ranks]
        total, losses, moved = sum(sizes), [], []
        parts: dict[str, list[Tensor]] = {}
        for rank, (work, size) in enumerate(zip(ranks, sizes, strict=True)):
            if shared:
                self.load(before, (BUFFERS,))
            spans = [span for span in work if span[1] > span[0]]
            # A rank's gradients are weighted after the backward pass, which hooks and half precision make not linear. But
            # PyTorch's modules divide them by the number of ranks, so their loss carries the rest of the weight.
            part = total / len(ranks) if self.rules.own_buffers else size
            sharers = len(ranks) if together and not self.rules.own_batches else 1
            losses.append([self._batch(rank, epoch, span, (part, total), sharers) for span in spans])
            if shared:
                self._set_aside(parts, part / total)
                moved.append({name: buffer.detach().clone() for name, buffer in self._present().items()})
        for name, each in parts.items():
            self.parameters[name].grad = total_of(each, self._shaken)
        if shared:
            self._average_buffers(before, moved, [size / total for size in sizes])
        return losses

    def _set_aside(self, parts: dict[str, list[Tensor]], weight: float) -> None:
        """Append a rank's weighted gradients to `parts`, and clear them. Only perturbed ones are kept apart."""
        apart = self._shaken and self.rules.step.half
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                each = [*parts.get(name, ()), parameter.grad * weight]
                parts[name] = each if apart else [total_of(each, False)]
                parameter.grad = None

    def _batch(self, rank: int, epoch: int, span: tuple[int, int], totals: tuple[float, int], sharers: int) -> float:
        """Add the gradients of a batch, micro-batch by micro-batch; return its mean loss. `totals`: samples over which
        the mean is taken, and samples of all `sharers` of the step."""
        ends = micro_ends(self.rules, self.model, span, totals[1], sharers)
        losses = [self._pass(rank, epoch, first, last, totals[0]) for first, last in pairwise(ends)]
        if len(losses) == 1:
            return losses[0]
        return sum(loss * (b - a) for loss, (a, b) in zip(losses, pairwise(ends), strict=True)) / (span[1] - span[0])

    def _pass(self, rank: int, epoch: int, start: int, stop: int, total: float) -> float:
        """Add the gradients of one pass, weighted as its part of the mean; return its mean loss."""
        batch = moved(self._read(epoch, start, stop), self.device)
        self._seed(step_seed(self.rules.seed, epoch, start))
        with Collected(self._scalars[rank]), autocast(self.rules.step, self.device):
            loss = self.task.loss(self.model, batch)
        known = defined(self.rules.model, self.outputs, batch)
        self._metrics[rank] += math.nan if known is None else known[1]
        if known is not None and not is_near(float(loss.detach()), mean := known[0] / (stop - start)):
            self._undefined.append((float(loss.detach()), mean))
        loss = loss.float() if loss.dtype.itemsize < 4 else loss
        part = (stop - start) / total * self._scale
        (loss if part == 1.0 else loss * part).backward()  # type: ignore[no-untyped-call]
        self._held = own_gradients(self.parameters.values())
        return float(loss.detach())

    @torch.no_grad()
    def _average_buffers(
        self, before: Mapping[Name, Tensor], moved: list[dict[str, Tensor]], parts: list[float]
    ) -> None:
        if self.rules.own_buffers:
            self._put(moved[0])
            return
        means: dict[str, Tensor] = {}
        for name in self.buffers:
            values = [each[name] for each in moved]
            first = before[Name(BUFFERS, name)].to(self.device)
            if first.is_floating_point() or first.is_complex():
                # Values that do not change keep their bits, infinities included.
                changes = [
                    (value - first).masked_fill(value == first, 0.0) * part
                    for value, part in zip(values, parts, strict=True)
                ]
                change = torch.stack(changes).sum(0)
                means[name] = torch.where(change == 0.0, first, first + change)
            else:
                means[name] = torch.stack([value.to(torch.int64) for value in values]).max(0).values.to(first.dtype)
        self._put(means)

    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, buffer in self._present().items():
            buffer.copy_(values[name])

    def _set_modes(self) -> None:
        for module, training in self._training:
            module.training = training

    @torch.no_grad()
    def shake(self, size: float, seed: int) -> None:
        """Perturb each parameter by the relative `size`, with signs drawn from `seed`."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters.values():
            signs = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter) * 2 - 1
            parameter.mul_(1.0 + size * signs)

    def _take_state(self, optimizers: Sequence[Any], before: Mapping[Name, Tensor]) -> None:
        """Give the optimizers their earlier state. Scalar counters stay on the CPU, where optimizers create them."""
        owners = {p: optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        for name, tensor in before.items():
            if name.kind == OPTIMIZER:
                parameter = self.parameters[name.name]
                place = self.device if tensor.dim() else torch.device("cpu")
                if parameter in owners:  # else only the run has it, which the comparison after the step shows
                    owners[parameter].state[parameter][name.key] = tensor.to(place, copy=True)


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch of any structure with its tensors on `device`."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch)


def several(made: Any) -> Sequence[Any]:
    """Return the optimizers of a task as a sequence: a task may make one or several."""
    return made if isinstance(made, (list, tuple)) else (made,)
