"""The structural hash of a module: what it computes, without its weights and names.

Owns the description of modules. Must not know graphs. The hash is the same in all processes, runs and machines: it depends
on class names, hyper-parameters and shapes, never on addresses, weights or Python's salted hashes.
"""

from __future__ import annotations

import functools
import hashlib
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn


def digest(description: object) -> str:
    """Return 64 hex digits for nested plain values, as returned by `describe`."""
    return hashlib.sha256(repr(description).encode()).hexdigest()


def describe(value: Any) -> Any:
    """Return nested strings, numbers and tuples that describe `value`. A module with a method `structure()` describes
    itself."""
    if isinstance(value, bool | int | float | complex | str | bytes | type(None) | torch.dtype):
        return repr(value)
    if isinstance(value, Tensor):
        return ("tensor", tuple(value.shape), str(value.dtype))
    if isinstance(value, tuple | list):
        return tuple(describe(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((repr(key), describe(item)) for key, item in value.items()))
    if isinstance(value, set | frozenset):
        return tuple(sorted(repr(describe(item)) for item in value))
    if isinstance(value, nn.Module):
        own = getattr(value, "structure", None)
        return own() if callable(own) else _describe_module(value)
    if isinstance(value, functools.partial):
        return ("partial", describe(value.func), describe(value.args), describe(value.keywords))
    return _describe_object(value)


def _describe_module(module: nn.Module) -> tuple[Any, ...]:
    # extra_repr is not enough: attention, for example, does not print its number of heads. `training` is a mode, and
    # attributes with an underscore are torch's bookkeeping (hooks) or derived.
    settings = {key: item for key, item in vars(module).items() if key != "training" and not key.startswith("_")}
    return (
        _name(type(module)),
        module.extra_repr(),
        describe(settings),
        tuple(
            (name, describe(tensor), tensor.requires_grad) for name, tensor in module.named_parameters(recurse=False)
        ),
        tuple((name, describe(tensor)) for name, tensor in module.named_buffers(recurse=False)),
        tuple((name, describe(child)) for name, child in module._modules.items()),
    )


def _describe_object(value: Any) -> tuple[Any, ...]:
    if isinstance(value, FunctionType) and "<" in value.__qualname__:
        # Lambdas and local functions have no unique name: describe their code instead.
        cells = tuple(describe(cell.cell_contents) for cell in value.__closure__ or ())
        return (_describe_code(value.__code__), cells, describe(value.__defaults__))
    if hasattr(value, "__qualname__"):
        return (_name(value),)
    return (_name(type(value)), describe(vars(value)) if hasattr(value, "__dict__") else "")


def _describe_code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_describe_code(c) if isinstance(c, CodeType) else describe(c) for c in code.co_consts)
    return (code.co_code.hex(), code.co_names, constants)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
