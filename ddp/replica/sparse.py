"""Sparse gradients, as of `nn.Embedding(sparse=True)`: finds the layers that make them, and refuses them where unsupported.

Where replicas step on their own, the optimizer gets sparse gradients as they are. Where gradients are exchanged they are
made dense, except by PyTorch's own backends, some of which do not support them. Knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn


def dense(gradient: Tensor) -> Tensor:
    """Return the gradient as a dense tensor."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def declared(model: nn.Module) -> Iterator[str]:
    """Yield the names of the parameters of layers with `sparse=True`."""
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if getattr(module, "sparse", False) is True and parameter.requires_grad:
                yield f"{path}.{name}".removeprefix(".")


def refuse(names: Iterable[str], engine: str) -> None:
    """Raise ValueError for the first of `names`, parameters with sparse gradients that `engine` cannot exchange."""
    for name in names:
        raise ValueError(
            f"the gradients of parameter {name} are sparse, which {engine} cannot exchange: give "
            "sparse=False where they are made, or take another mode (nccl_sync, zero1, zero2, zero3 average dense ones)"
        )


class Watch:
    """Checks the first gradient of each parameter with hooks. Raises ValueError that names a sparse one."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._hooks: dict[int, tuple[Tensor, Any]] = {}
        self._seen: set[int] = set()

    def add(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Check these parameters too, from their next backward pass on."""
        for name, parameter in named:
            if parameter.requires_grad and id(parameter) not in self._hooks:
                look = partial(self._look, name, id(parameter))
                self._hooks[id(parameter)] = parameter, parameter.register_hook(look)  # type: ignore[no-untyped-call]

    def _look(self, name: str, key: int, gradient: Tensor) -> None:
        self._seen.add(key)
        if gradient.is_sparse:
            refuse([name], self._engine)

    def rest(self) -> None:
        """Remove the hooks of parameters whose gradients a backward pass has shown."""
        for key in self._seen:
            self._hooks[key][1].remove()
        self._seen.clear()
