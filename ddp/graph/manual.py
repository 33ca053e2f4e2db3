"""`wrap`: replicas under the caller's own control, for training that decides for itself when gradients meet (GAN, RL).

The caller runs forward and backward on every model and steps every optimizer; this brings gradients, parameters and buffers
together, in the order of the models: the same bits every time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ddp.graph.devices import resolve
from ddp.graph.errors import GraphError

_wrapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def wrap(models: Sequence[nn.Module], devices: Sequence[str | torch.device] | None = None) -> Manual:
    """Take `models`, alike, one for each of `devices` (None: where they are); they are moved there.

    GraphError for unequal models, and for one that is wrapped already. Their parameters are not made equal: `sync_params`.
    """
    models = list(models)
    places = resolve(devices) if devices is not None else tuple(_place(model) for model in models)
    if not models or len(places) != len(models):
        raise GraphError(f"{len(models)} models for {len(places)} devices: give one model for each device")
    if len({id(model) for model in models}) < len(models):
        raise GraphError("a model is given twice: make one for each device")
    shapes = [[(name, tuple(value.shape)) for name, value in model.state_dict().items()] for model in models]
    for index, other in enumerate(shapes[1:], 1):
        for ours, theirs in zip(shapes[0], other, strict=False):
            if ours != theirs:
                raise GraphError(
                    f"unequal models: {ours} in model 0, {theirs} in model {index}; build them in the same way"
                )
        if len(other) != len(shapes[0]):
            raise GraphError(f"unequal models: model {index} has {len(other)} tensors, model 0 {len(shapes[0])}")
    for index, model in enumerate(models):
        if model in _wrapped or getattr(model, "_training", None) is not None:
            raise GraphError(
                f"model {index} is wrapped, or distributed, already: go on with that, or make another model"
            )
    for model, place in zip(models, places, strict=True):
        model.to(place)
        _wrapped.add(model)
    return Manual(models, places)


class Manual:
    """Models that are brought together on demand."""

    def __init__(self, models: list[nn.Module], devices: tuple[torch.device, ...]) -> None:
        self._models, self._devices = models, devices

    def world_size(self) -> int:
        """Number of models."""
        return len(self._models)

    def devices(self) -> list[torch.device]:
        """By model."""
        return list(self._devices)

    @torch.no_grad()
    def sync_params(self) -> None:
        """All models take the parameters of the first one."""
        for first, *others in zip(*(model.parameters() for model in self._models), strict=True):
            for other in others:
                other.copy_(first)

    def all_reduce_gradients(self) -> None:
        """Every model's gradients become their mean."""
        self._reduce([1 / len(self._models)] * len(self._models))

    def weighted_all_reduce_gradients(self, counts: Sequence[int]) -> None:
        """Every model's gradients become their mean weighted by `counts`: the batches that each is the mean of."""
        self._reduce(self._weights(counts))

    def sync_buffers(self, counts: Sequence[int] | None = None) -> None:
        """Floating-point buffers become their mean, weighted by `counts` (None: equally); others their maximum."""
        weights = self._weights([1] * len(self._models) if counts is None else counts)
        with torch.no_grad():
            for buffers in zip(*(model.buffers() for model in self._models), strict=True):
                mean = _mean(buffers, weights)
                for buffer in buffers:
                    buffer.copy_(mean)

    @torch.no_grad()
    def _reduce(self, weights: list[float]) -> None:
        for parameters in zip(*(model.parameters() for model in self._models), strict=True):
            total: Tensor | None = None
            for parameter, weight in zip(parameters, weights, strict=True):
                if parameter.grad is not None and weight:
                    part = parameter.grad.to(parameters[0].device) * weight
                    total = part if total is None else total + part
            for parameter in parameters:
                parameter.grad = None if total is None else total.to(parameter.device, copy=True)

    def _weights(self, counts: Sequence[int]) -> list[float]:
        if len(counts) != len(self._models):
            raise GraphError(f"{len(counts)} batch counts for {len(self._models)} models: give one for each")
        if min(counts) < 0 or not sum(counts):
            raise GraphError(f"batch counts {list(counts)} must be 0 or more, and not all 0")
        return [count / sum(counts) for count in counts]


def _mean(buffers: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Around the first one, so that equal buffers keep their bits."""
    first = buffers[0]
    mean = first.clone()
    for other, weight in zip(buffers[1:], weights[1:], strict=True):
        theirs = other.to(first.device)
        if first.is_floating_point():
            mean += torch.where(theirs == first, 0.0, (theirs - first) * weight)
        else:
            mean = torch.maximum(mean, theirs)
    return mean


def _place(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
