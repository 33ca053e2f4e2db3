"""The graph of a model as plain data: its layers in the order of the forward pass, and the edges between them.

One sample of zeros passes through a copy of the model on the CPU, which takes about 10 ms (importing torch's `meta`
device would take seconds). Tensors are followed through all functions between layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.config.plan import RunPlan
from bench.models.data import data_set

if TYPE_CHECKING:
    from torch import nn

Json = dict[str, Any]


def described(plan: RunPlan) -> Json | None:
    """Return the graph of the model that `plan` trains; None if it cannot be traced, which must not fail the run."""
    import torch

    try:
        data = data_set(plan.recipe.data, plan.spec.config["data"]["dir"], plan.recipe.data_options)
        with torch.random.fork_rng(devices=[]):
            model = plan.job.task().model().eval()
            sample = torch.zeros(1, *data.shape, dtype=torch.int64 if data.is_text else torch.float32)
            return {"metric": plan.spec.metric, "input": list(data.shape), **follow(model, sample)}
    except Exception:  # whatever a model of a user's own may do
        return None


def follow(model: nn.Module, *inputs: Any) -> Json:
    """Return the layers of `model` on `inputs`, as `follow_call` does."""
    return follow_call(model, lambda: model(*inputs))


def follow_call(model: nn.Module, call: Callable[[], Any]) -> Json:
    """Return the layers of `model` (modules without submodules, once for each use in `call`), and the edges between
    them.

    `out`: output shape without the first dimension. `parameters`: number of a layer's parameters, at its first use
    only.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    origins: dict[int, set[int]] = {}
    """Id of a tensor -> layers that it comes from."""
    kept: list[Any] = []  # a number is a tensor's only as long as there is the tensor
    nodes: list[Json] = []
    edges: set[tuple[int, int]] = set()
    stack: list[tuple[int, nn.Module]] = []
    counted: set[int] = set()

    def sources(*values: Any) -> set[int]:
        return {source for tensor in tensors(values) for source in origins.get(id(tensor), ())}

    def mark(value: Any, layers: set[int]) -> None:
        for tensor in tensors(value):
            kept.append(tensor)
            origins[id(tensor)] = set(layers)

    class ShapeRecorder(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            value = func(*args, **(kwargs or {}))
            if not stack and tensors(value) and (layers := sources(args, kwargs)):
                if len(layers) > 1:  # what comes together here is a layer of its own
                    name = func.__name__.strip("_")
                    nodes.append({"name": name, "type": name, "detail": "", "parameters": 0, "out": shape(value)})
                    edges.update((source, len(nodes) - 1) for source in layers)
                    layers = {len(nodes) - 1}
                mark(value, layers)
            return value

    def entered(module: nn.Module, args: Any, kwargs: Any) -> None:
        own = [p for p in module.parameters() if id(p) not in counted]
        counted.update(map(id, own))
        stack.append((len(nodes), module))
        nodes.append(
            {
                "name": names[id(module)],
                "type": type(module).__name__,
                "detail": module.extra_repr(),
                "parameters": sum(p.numel() for p in own),
            }
        )
        edges.update((source, len(nodes) - 1) for source in sources(args, kwargs))

    def left(module: nn.Module, args: Any, value: Any) -> None:
        number, _ = stack.pop()
        mark(value, {number})
        nodes[number]["out"] = shape(value)

    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
    leaves = [module for module in model.modules() if next(module.children(), None) is None]
    hooks = [leaf.register_forward_pre_hook(entered, with_kwargs=True) for leaf in leaves]
    hooks += [leaf.register_forward_hook(left) for leaf in leaves]
    try:
        with torch.no_grad(), ShapeRecorder():
            call()
    finally:
        for hook in hooks:
            hook.remove()
    total = sum(p.numel() for p in model.parameters())
    return {"type": type(model).__name__, "parameters": total, "nodes": nodes, "edges": sorted(edges)}


def shape(value: Any) -> list[int]:
    """Return the shape of the first tensor in `value`, without its first dimension; empty if there is no tensor."""
    return [int(size) for tensor in tensors(value)[:1] for size in tensor.shape[1:]]


def tensors(value: Any) -> list[Any]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
