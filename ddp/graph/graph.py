"""`Graph`: a flow that can be trained, on one device or on many. What trains it is `ddp.graph.training`'s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from ddp.graph.flow import Flow, FlowOutput, FlowStep
from ddp.graph.trainable import Trainable


class Graph(Trainable, Flow):
    """A flow of modules and what it is trained with. Made by `FlowBuilder.build`.

    Distributed, `forward` divides its inputs over the replicas along their first dimension and puts the value together.
    """

    def __init__(self, steps: Iterable[FlowStep], modules: Iterable[nn.Module]) -> None:
        super().__init__(steps, modules)
        self._training = None
        # A function of the module, for a copy has hooks of its own to be called with itself.
        self.register_load_state_dict_post_hook(_loaded)  # type: ignore[no-untyped-call]

    def _pass(self, inputs: tuple[Any, ...]) -> FlowOutput:
        """Do the pass that `forward` is called for, on all replicas."""
        return self._training.forward(inputs) if self._training is not None else self.flow(*inputs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients since the last step; distributed, those of all replicas."""
        nn.Module.zero_grad(self, set_to_none)
        if self._training is not None and self._training.replicas is not None:
            self._training.replicas.forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_training": None}


def _loaded(graph: Graph, *_: Any) -> None:
    """Replicas take parameters that were replaced."""
    if graph._training is not None:
        graph._training.loaded()
