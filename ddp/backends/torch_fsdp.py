"""`torch_fsdp`: PyTorch's fully_shard (FSDP2). Parameters, gradients and optimizer state are sliced over the ranks.

The replica's model stays unsharded; evaluations, the final state and callbacks see it. Training happens in a sharded copy,
whose values are gathered into the replica where the whole model is needed. FSDP does not synchronise buffers: every rank
has its own, and the whole model gets those of rank 0, as in `torch_ddp` and as usual where rank 0 saves."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ddp.backends.torch_backend import TorchBackend, TorchStep
from ddp.core.samples.spans import Batch
from ddp.replica.evidence.pieces import OPTIMIZER, PARAMETERS, StatePiece, of_buffers, tensors_of
from ddp.replica.memory.flat import saved_buffers
from ddp.replica.optim.optimizers import members

GROUP_ELEMENTS = 1_000_000
"""Fewest parameters of a module that FSDP gathers and frees as a group of its own. Smaller modules are in the whole model's
group, which FSDP keeps gathered from the forward to the backward pass. PyTorch leaves the choice to the user; its older
size-based rule took 100 million."""


class FullyShardedStep(TorchStep):
    """Every rank has a shard of parameters, gradients and optimizer state."""

    takes_sparse = waits_behind = False
    group_elements = GROUP_ELEMENTS

    def build(self) -> None:
        """Shard a copy of the model. The optimizer stays the same object and updates the shards from now on. Raises
        ValueError for a model that has no full copy."""
        self.refuse_hooks()
        own = list(self.replica.model.parameters())
        twin = _twin(self.replica.model)
        mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        _shard(twin, mesh, self.group_elements)
        self.module = twin
        places: dict[Tensor, Tensor] = dict(zip(own, twin.parameters(), strict=True))
        self.unmoved = [places[parameter] for parameter in self.unmoved]
        for part in members(self.replica.optimizer):
            for group in part.param_groups:
                for parameter in group["params"]:
                    if state := part.state.pop(parameter, None):  # some optimizers have state from the beginning
                        part.state[places[parameter]] = _sliced(state, places[parameter])
                group["params"] = [places[parameter] for parameter in group["params"]]

    def watch(self) -> None:
        """Check the gradients of the gathered parameters, which autograd uses. They exist once their group's forward pass
        begins."""
        for path, module in self.module.named_modules():
            gathers = isinstance(module, FSDPModule)
            if gathers:
                module.register_forward_pre_hook(partial(self._gathered, path))

    def one_pass(self, last: bool) -> AbstractContextManager[None]:
        """Return an empty context: every pass exchanges its gradients, as no rank keeps whole ones."""
        return nullcontext()

    def exchange(self, batch: Batch) -> None:
        """Finish the step's exchange. Raises ValueError as of `TorchStep`, and for parameters that were frozen meanwhile."""
        for (name, own), sharded in zip(self.replica.model.named_parameters(), self.module.parameters(), strict=True):
            if own.requires_grad != sharded.requires_grad:
                raise ValueError(
                    f"parameter {name} was {'un' * own.requires_grad}frozen after training began, when torch_fsdp made its "
                    "sharded copy: do so where the model is made, or take mode=zero3 to freeze it later"
                )
        super().exchange(batch)

    def agree(self, finite: bool) -> bool:
        """Return whether the gradient shards of all ranks are finite."""
        lacking = torch.tensor([int(not finite)], device=self.device)
        dist.all_reduce(lacking, dist.ReduceOp.MAX)
        return not int(lacking)

    def _gathered(self, path: str, module: nn.Module, args: Any) -> None:
        self._watch.add(
            (f"{path}.{name}".removeprefix("."), parameter)
            for name, parameter in module.named_parameters()
            if not isinstance(parameter, DTensor)
        )

    def assemble(self) -> None:
        """Gather every parameter, and copy this rank's buffers; then broadcast rank 0's buffers."""
        replica = self.replica.model
        for own, sharded in zip(replica.parameters(), self.module.parameters(), strict=True):
            own.copy_(sharded.full_tensor() if isinstance(sharded, DTensor) else sharded)
        buffers, saved = dict(replica.named_buffers()), {name for name, _ in saved_buffers(self.module)}
        for name, trained in self.module.named_buffers():
            known = buffers[name].shape if name in buffers else None
            if name in saved or trained.shape == known:  # else a cache, which the replica makes itself
                buffers[name].copy_(trained)
        super().assemble()

    def pieces(self) -> Iterator[StatePiece]:
        """Iterate over this rank's shards (rows of every tensor) and its own buffers."""
        names = [name for name, _ in self.replica.model.named_parameters()]
        for name, parameter in zip(names, self.module.parameters(), strict=True):
            values, start = _own_rows(parameter)
            whole = not isinstance(parameter, DTensor)  # before the first step
            if whole or values.numel():
                yield StatePiece(PARAMETERS, name, values, parameter.shape, start=start, shared=whole)
            for key, value in tensors_of(self.replica.optimizer.state.get(parameter, {})):
                if isinstance(value, DTensor) and values.numel():
                    yield StatePiece(OPTIMIZER, name, value.to_local().detach(), parameter.shape, key, start)
                elif not isinstance(value, DTensor):
                    yield StatePiece(OPTIMIZER, name, value.detach(), value.shape, key, shared=True)
        yield from of_buffers(self.module, self.replica.state, shared=True)


def _sliced(state: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return this rank's shard of an optimizer's state of a whole parameter. A collective of all ranks."""

    def part(value: Any) -> Any:
        if not isinstance(value, Tensor) or not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)

    return {key: value if key == "step" else part(value) for key, value in state.items()}


def _own_rows(parameter: Tensor) -> tuple[Tensor, int]:
    """Return this rank's rows of a parameter, and the index of their first element."""
    if not isinstance(parameter, DTensor):
        return parameter.detach(), 0
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return parameter.to_local().detach(), offset[0] * parameter.shape[1:].numel() if offset else 0


def _twin(model: nn.Module) -> nn.Module:
    """Return a copy of the model in memory of its own. Raises ValueError if a copy would lack something."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ValueError(
                f"torch_fsdp trains a sharded copy of the model, which has no hooks on gradients, and {name} has one: take "
                "mode=zero3, which keeps them"
            )
    try:
        twin = copy.deepcopy(model)
    except RuntimeError as error:
        if "deepcopy protocol" not in str(error):
            raise
        raise ValueError(
            "torch_fsdp trains a sharded copy of the model, and a module keeps a tensor that is computed from parameters, "
            "which cannot be copied: take torch.nn.utils.parametrizations.weight_norm for that of torch.nn.utils, or "
            "mode=zero3"
        ) from error
    copies: dict[Tensor, Tensor] = {}
    for module in twin.modules():
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            # a deep copy of a view would copy the whole flat state
            module._buffers[name] = copies.setdefault(buffer, buffer.clone())
    return twin


def _shard(root: nn.Module, mesh: DeviceMesh, group_elements: int) -> None:
    """Shard groups from the innermost to the outermost; the whole model is the last."""
    taken: set[nn.Parameter] = set()
    for module in [*reversed(list(root.modules())[1:]), root]:
        own = [parameter for parameter in module.parameters() if parameter not in taken]
        containers = (nn.ModuleList, nn.ModuleDict)  # without a forward pass there is no time to gather
        large = sum(parameter.numel() for parameter in own) >= group_elements and not isinstance(module, containers)
        if module is root or large:
            taken.update(own)
            fully_shard(module, mesh=mesh)
    for name in own_methods(
        type(root)
    ):  # not of inner groups: their `forward` may call them, and would lose its parameters
        register_fsdp_forward_method(root, name)  # gathers, as `forward` does


def own_methods(kind: type) -> set[str]:
    """Return the public methods of the model's class that `nn.Module` does not have: a step may call them."""
    bases = [base for base in kind.__mro__ if base not in FSDPModule.__mro__ and base not in nn.Module.__mro__]
    named = (name for base in bases for name, value in vars(base).items() if inspect.isfunction(value))
    return {name for name in named if not name.startswith("_") and not hasattr(nn.Module, name)}


class Backend(TorchBackend):
    """A rank's side."""

    step_type = FullyShardedStep
