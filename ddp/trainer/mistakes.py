"""Recognises common mistakes in the arguments of `Trainer` and says in one line what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from ddp.replica.trainable import trainable
from ddp.settings import function
from ddp.suggest import unknown

RATES = "write schedule, a function of the fraction of samples seen, from 0 to 1, that gives a factor on the rate"
ELSEWHERE = {
    "batch_sampler": "give batch_size, and sampler for another order",
    "criterion": "train_step returns the loss",
    "dataloader": "give its data set as dataset, and batch_size",
    "generator": "all random numbers come from seed",
    "grad_clip": "write max_grad_norm",
    "loss_fn": "train_step returns the loss",
    "lr": "the optimizer that optimizer_factory makes has it",
    "lr_scheduler": RATES,
    "max_epochs": "write epochs",
    "model": "give model_factory, a function that makes it",
    "num_epochs": "write epochs",
    "num_workers": "a thread of each rank reads ahead: write prefetch, in batches, or leave it out",
    "optimizer": "give optimizer_factory, a function of the parameters that makes it",
    "persistent_workers": "a thread of each rank reads ahead for the whole run: leave it out",
    "pin_memory": "batches on their way to a GPU are pinned already: leave it out",
    "prefetch_factor": "write prefetch, in batches",
    "scheduler": RATES,
    "shuffle": "every epoch is shuffled by seed; for another order write sampler, such as lambda epoch: range(len(data))",
    "timeout": "write deadline_s",
    "val_dataset": "write eval_dataset, with eval_step",
    "worker_init_fn": "no processes read the data; what it draws from torch is seeded for every sample: leave it out",
}
"""Arguments of other trainers and loaders -> what to write here."""
CALLS: dict[str, tuple[str, ...]] = {
    "model_factory": (),
    "optimizer_factory": ("parameters",),
    "train_step": ("model", "batch"),
    "eval_step": ("model", "batch"),
    "epoch_callback": ("epoch", "worker"),
    "augment": ("batch", "draws"),
    "collate_fn": ("samples",),
}
"""Argument -> names of the positional arguments that the user's function is called with."""
_OF_ONE = "Expected more than 1 value per channel when training"
LAST = "a batch of one sample, as the last of an epoch may be, cannot be normalised; drop_last=True leaves it out"
"""Remedy when PyTorch refuses to normalise over a batch of one sample."""
_MADE: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
"""The parameters to train of all models made in this process, by identity."""
WRAPPED = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")


def refuse_keywords(given: Collection[str], own: Collection[str], settings: Collection[str], policy: str) -> None:
    """Raise ValueError for keywords that are neither arguments of `Trainer` (`own`) nor `settings` of the policy."""
    for key in given:
        if key in settings:
            continue
        if key in ELSEWHERE:
            raise ValueError(f"{key} is no argument of Trainer: {ELSEWHERE[key]}")
        if key not in (known := (*settings, *own)) and "did you mean" in (line := unknown("argument", key, known)):
            raise ValueError(line)


def check_function(name: str, given: Any) -> None:
    """Raise ValueError unless `given` is a function that accepts the arguments in `CALLS[name]`."""
    if isinstance(given, nn.Module) and name == "model_factory":
        raise ValueError(
            f"model_factory must be a function that makes the model in every rank, not a model: give lambda: "
            f"{type(given).__name__}(...), or lambda: copy.deepcopy(model) to begin from this one"
        )
    if isinstance(given, torch.optim.Optimizer):
        raise ValueError(
            f"{name} must be a function that makes the optimizer of each rank's own parameters, not an optimizer: give "
            f"lambda parameters: {type(given).__name__}(parameters, ...)"
        )
    function(name, given)
    names = CALLS[name]
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        raise ValueError(f"{name} is called as {name}({', '.join(names)}), and takes {signature} ({error})") from None


def a_model(made: Any) -> nn.Module:
    """Return the result of `model_factory`. Raise ValueError if it is no model, has tensors on the meta device, or
    is wrapped by another engine."""
    for kind in type(made).__mro__ if isinstance(made, nn.Module) else ():
        if kind.__name__ in WRAPPED:
            raise ValueError(
                f"the model is wrapped in {kind.__name__}, and ranks are brought together here: return the model itself "
                "from model_factory"
            )
    named = () if not isinstance(made, nn.Module) else (*made.named_parameters(), *made.named_buffers())
    for name, tensor in named:
        if tensor.is_meta:
            raise ValueError(
                f"{name} is on the meta device, without values: make the model on the CPU in model_factory"
            )
    return trainable(made)


def make_model(factory: Callable[[], Any]) -> nn.Module:
    """Return the model made by `factory`. Raise ValueError for a model that cannot be trained here, or not again; other
    exceptions of `factory` pass through."""
    try:
        return _new(a_model(factory()))
    except ValueError as error:
        if "process group has not been initialized" in str(error):
            raise ValueError(
                "model_factory needs a process group of torch.distributed, as its wrappers of models do: return the model "
                "itself, ranks are brought together here"
            ) from error
        raise


def _new(model: nn.Module) -> nn.Module:
    """Return `model`. Raise ValueError if a model made before shares a parameter that is trained."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, parameter in trained.items():
        if id(parameter) in _MADE:
            raise ValueError(
                f"model_factory returns the same {name} each time, so that runs or ranks would train one model: make it in "
                "the factory, or give lambda: copy.deepcopy(model)"
            )
    _MADE.update((id(parameter), parameter) for parameter in trained.values())
    return model


class CheckedStep:
    """A user's train step that checks the returned loss on every call, and on the first call also which parameters
    it depends on."""

    def __init__(self, step: Callable[[nn.Module, Any], Any]) -> None:
        self._step, self._first = step, True

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss, shape (). Raise ValueError if the step returns no loss, or a loss of another model."""
        try:
            loss = self._step(model, batch)
        except ValueError as error:
            if _OF_ONE in str(error):
                raise ValueError(f"{error}: {LAST}") from error
            raise
        scalar = isinstance(loss, Tensor) and loss.numel() == 1 and _has_gradient(loss) and not loss.is_complex()
        if not scalar:
            raise ValueError(
                "train_step must return the batch's mean loss, one number that the gradient is taken of, not "
                f"{summary(loss)}{_remedy(loss)}"
            )
        if self._first:
            self._first = False
            if not _gradients(model):
                _refuse_others(loss, model)
            elif loss.grad_fn is not None:
                raise ValueError(BACKWARD)
        shaped: Tensor = loss.reshape(())
        return shaped


def _has_gradient(value: Tensor) -> bool:
    """Return whether a gradient can be taken of `value`. Those of many ranks in one tensor say so only together."""
    while torch._C._functorch.is_batchedtensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value.requires_grad


def summary(value: Any) -> str:
    """Describe what a step returned, in a few words."""
    if not isinstance(value, Tensor):
        return " ".join(repr(value).split())[:60]
    lacks = "" if _has_gradient(value) else " without gradient"
    return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}{lacks}"


def _remedy(loss: Any) -> str:
    if loss is None:
        return ": write return loss"
    if isinstance(loss, dict):
        return ": return the loss alone, and give the rest to ddp.record_scalar(name, value)"
    if isinstance(loss, (tuple, list)):
        return ": return the loss alone"
    if isinstance(loss, (int, float)):
        return ": leave out .item() or float()"
    if isinstance(loss, Tensor) and loss.numel() > 1:
        return ": write loss.mean()"
    if isinstance(loss, Tensor) and not _has_gradient(loss):
        return ": leave out .detach(), torch.no_grad() and backward(), which is called for you"
    return ""


BACKWARD = (
    "train_step called backward(), and gradients would count twice: return the loss (the sum, of several) and leave "
    "backward to the Trainer; for gradients of another kind use torch.autograd.grad, or clear them again, or return a "
    "loss without a graph, loss.detach().requires_grad_()"
)


def _gradients(model: nn.Module) -> bool:
    """Return whether the step left gradients in the model. All gradients were zero or None before it."""
    return any(p.grad is not None and bool(p.grad.to_dense().any()) for p in model.parameters())


def _refuse_others(loss: Tensor, model: nn.Module) -> None:
    """Raise ValueError if the loss depends on parameters, but on none of `model`."""
    mine = {id(parameter) for parameter in model.parameters()}
    foreign, waiting, seen = False, [loss.grad_fn], set()
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):  # autograd does not show what is inside
            return
        variable = getattr(node, "variable", None)
        if variable is not None:
            foreign = True
            if id(variable) in mine:
                return
        waiting += [following for following, _ in node.next_functions]
    if foreign:
        raise ValueError(
            "the loss depends on no parameter of the model that train_step is given: compute it with that argument, not "
            "with a model from outside, which in a rank is a copy that nobody trains"
        )
