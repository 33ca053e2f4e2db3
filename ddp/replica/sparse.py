"""Gradients of some rows alone, as `nn.Embedding(sparse=True)` makes them: which layers do, and who refuses them.

Where replicas train by themselves the optimizer sees them as they come; where gradients meet they are made dense, but
for PyTorch's own backends, of which some can take none. Knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn


def dense(gradient: Tensor) -> Tensor:
    """Return the gradient with all its rows."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def declared(model: nn.Module) -> Iterator[str]:
    """Yield the names of the parameters whose layers say that their gradients are sparse: `sparse=True`."""
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if getattr(module, "sparse", False) is True and parameter.requires_grad:
                yield f"{path}.{name}".removeprefix(".")


def refuse(names: Iterable[str], engine: str) -> None:
    """Raise ValueError for the first of `names`, a parameter with sparse gradients, which `engine` cannot exchange."""
    for name in names:
        raise ValueError(
            f"the gradients of parameter {name} are sparse, which {engine} cannot exchange: give "
            "sparse=False where they are made, or take another mode (nccl_sync, zero1, zero2, zero3 average dense ones)"
        )


class Watch:
    """Looks at the first gradient of each parameter, on its way. Raises ValueError that names one that is sparse."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._hooks: dict[int, tuple[Tensor, Any]] = {}
        self._seen: set[int] = set()

    def add(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Look at these, too, before their next backward pass."""
        for name, parameter in named:
            if parameter.requires_grad and id(parameter) not in self._hooks:
                look = partial(self._look, name, id(parameter))
                self._hooks[id(parameter)] = parameter, parameter.register_hook(look)  # type: ignore[no-untyped-call]

    def _look(self, name: str, key: int, gradient: Tensor) -> None:
        self._seen.add(key)
        if gradient.is_sparse:
            refuse([name], self._engine)

    def rest(self) -> None:
        """Look no longer at what a backward pass has shown."""
        for key in self._seen:
            self._hooks[key][1].remove()
        self._seen.clear()
