"""Randomness of other people's code, made a function of a seed: torch's random functions, in one thread, for a while.

Data sets of samples (torchvision's transforms among them) draw from torch's global generator, which belongs to the training
step: a thread that reads ahead would race with dropout for its numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

_FUNCTIONS = frozenset(
    (
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("normal", "bernoulli", "multinomial", "poisson", "binomial"),
        *("random_", "uniform_", "normal_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"),
        "kaiming_uniform_",
        *("_standard_gamma", "_sample_dirichlet"),  # what distributions are made of: Gamma, Beta, Dirichlet
    )
)
"""Those that take a generator."""
_UNTRAINED = frozenset(("alpha_dropout", "feature_alpha_dropout", "rrelu"))
_CLOSED = dict.fromkeys(
    ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
    ("input", "p", "training"),
) | {"rrelu": ("input", "lower", "upper", "training"), "gumbel_softmax": ("logits",)}
"""Those that draw, and take none -> their parameters, in order. `_UNTRAINED` draw only where they are told to train."""


def seed_others(seed: int) -> None:
    """Seed NumPy's and Python's own generators, of the whole process, with any 64-bit integer."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)


def others() -> tuple[Any, Any]:
    """Return the state of Python's and NumPy's own generators, in plain containers."""
    state: dict[str, Any] = np.random.get_state(legacy=False)
    plain = {key: part.tolist() if isinstance(part, np.ndarray) else part for key, part in state["state"].items()}
    return random.getstate(), {**state, "state": plain}


def set_others(states: tuple[Any, Any]) -> None:
    """Put them back to what `others` gave. Raise ValueError, TypeError or KeyError for what cannot have been."""
    python, numpy = states
    random.setstate(python)
    np.random.set_state(numpy)


class OwnNumbers:
    """Digests of the states of these generators: at the start, before and after an epoch is begun. Not `watched`: none."""

    def __init__(self, watched: bool) -> None:
        self.digests: list[str] = []
        self._watched = watched
        self.note()

    def note(self) -> None:
        """Add the digest of how they are now, if they are watched."""
        if self._watched:
            self.digests.append(sha256(repr(others()).encode()).hexdigest()[:16])


class Seeded(TorchFunctionMode):
    """`with Seeded() as mode: mode.seed(7); torch.rand(3)`: numbers of `seed`, and the global generator stays as it is.

    For functions of torch on the CPU that can be given a generator; one that is given stays. ValueError for dropout and the
    like, which cannot. In this thread alone. What other libraries draw (NumPy, `random`) is not covered."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator()

    def seed(self, seed: int) -> None:
        """Begin anew, with any 64-bit integer."""
        self._generator.manual_seed(seed)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _closed(func, args, kwargs):
            raise ValueError(
                f"{func.__name__} draws from torch's global generator, whose numbers belong to the training step: draw a "
                "mask by torch.rand"
            )
        if _draws(func, kwargs):
            kwargs = {**kwargs, "generator": self._generator}
        return func(*args, **kwargs)


class Undrawn(TorchFunctionMode):
    """Refuses, in this thread, what would draw from torch's global generator: ValueError, `message` of the function."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self._message = message

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _draws(func, kwargs) or _closed(func, args, kwargs):
            raise ValueError(self._message.format(func.__name__))
        return func(*args, **kwargs)


def _draws(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Tell whether a function of torch, called so, draws from the global generator, and could from another."""
    return getattr(func, "__name__", "") in _FUNCTIONS and kwargs.get("generator") in (None, torch.default_generator)


def _closed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether it draws from the global generator and from no other: dropout does while it trains, with a p above 0."""
    name = getattr(func, "__name__", "")
    if name not in _CLOSED:
        return False
    given = {**dict(zip(_CLOSED[name], args, strict=False)), **kwargs}
    trains = given.get("training", given.get("train", name not in _UNTRAINED))
    return bool(trains) and given.get("p") != 0
