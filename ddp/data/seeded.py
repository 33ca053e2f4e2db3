"""Makes the random numbers of other code depend on a seed: torch's random functions, in one thread, inside a block.

Map-style data sets (with torchvision's transforms, for example) draw from torch's global generator, which belongs to the
training step. A thread that reads ahead would race with dropout for its numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

T = TypeVar("T")
_FUNCTIONS = frozenset(
    (
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("normal", "bernoulli", "multinomial", "poisson", "binomial"),
        *("random_", "uniform_", "normal_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"),
        "kaiming_uniform_",
        *("_standard_gamma", "_sample_dirichlet"),  # used by distributions: Gamma, Beta, Dirichlet
    )
)
"""Random functions that accept a generator."""
_UNTRAINED = frozenset(("alpha_dropout", "feature_alpha_dropout", "rrelu"))
_CLOSED = dict.fromkeys(
    ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
    ("input", "p", "training"),
) | {"rrelu": ("input", "lower", "upper", "training"), "gumbel_softmax": ("logits",)}
"""Random functions that accept no generator -> their parameters, in order. `_UNTRAINED` draw only with `training=True`."""


def seed_others(seed: int) -> None:
    """Seed the global generators of NumPy and Python with any 64-bit integer."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)


def _seed_all(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python with any 64-bit integer."""
    torch.manual_seed(seed)
    seed_others(seed)


def seeded(seed: int, make: Callable[[], T]) -> T:
    """Return what `make` makes; seed all generators before it, and again after it, as it may import modules that draw
    numbers or seed."""
    _seed_all(seed)
    made = make()
    _seed_all(seed)
    return made


def others() -> tuple[Any, Any]:
    """Return the states of Python's and NumPy's global generators, in plain containers."""
    state: dict[str, Any] = np.random.get_state(legacy=False)
    plain = {key: part.tolist() if isinstance(part, np.ndarray) else part for key, part in state["state"].items()}
    return random.getstate(), {**state, "state": plain}


def set_others(states: tuple[Any, Any]) -> None:
    """Restore the states that `others` returned. Raise ValueError, TypeError or KeyError for invalid states."""
    python, numpy = states
    random.setstate(python)
    np.random.set_state(numpy)


EPOCHS = 5000
"""Number of epochs of a process in which digests are noted: all are sent in one message."""


class OwnNumbers:
    """Digests of the states of these generators: at the start, before and after one of the first EPOCHS epochs is begun.
    Not `watched`: none."""

    def __init__(self, watched: bool) -> None:
        self.digests: list[str] = []
        self._watched = watched
        self.note()

    def note(self) -> None:
        """Add the digest of how they are now, if they are watched, up to EPOCHS epochs."""
        if self._watched and len(self.digests) <= 2 * EPOCHS:
            self.digests.append(sha256(repr(others()).encode()).hexdigest()[:16])


class Seeded(TorchFunctionMode):
    """`with Seeded() as mode: mode.seed(7); torch.rand(3)` draws from `seed`, and leaves the global generator unchanged.

    Applies to torch's functions that accept a generator; an explicit generator is used as it is. Raises ValueError for
    dropout and similar functions, which accept none. Affects this thread only. Does not affect other libraries (NumPy,
    `random`)."""

    def __init__(self) -> None:
        super().__init__()
        self._generators = {"cpu": torch.Generator()}

    def seed(self, seed: int) -> None:
        """Seed the generators, one for each kind of device, with any 64-bit integer."""
        self._generators = {"cpu": self._generators["cpu"].manual_seed(seed)}

    def _generator(self, device: torch.device) -> torch.Generator:
        if device.type not in self._generators:
            seed = self._generators["cpu"].initial_seed()
            self._generators[device.type] = torch.Generator(device).manual_seed(seed)
        return self._generators[device.type]

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
            kwargs = {**kwargs, "generator": self._generator(_device(args, kwargs))}
        return func(*args, **kwargs)


class Undrawn(TorchFunctionMode):
    """Raises ValueError with `message` for torch functions that would draw from the global generator, in this thread."""

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
    """Return whether a call of a torch function draws from the global generator, but could use another."""
    return getattr(func, "__name__", "") in _FUNCTIONS and kwargs.get("generator") in (None, torch.default_generator)


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Return the device of what a call draws: the one named, or that of its tensors, or the CPU."""
    named = kwargs.get("device")
    tensors = (part.device for part in (*args, *kwargs.values()) if isinstance(part, torch.Tensor))
    return torch.device(next(tensors, "cpu") if named is None else named)


def _closed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call draws from the global generator and cannot use another. Dropout does so in training with p >
    0."""
    name = getattr(func, "__name__", "")
    if name not in _CLOSED:
        return False
    given = {**dict(zip(_CLOSED[name], args, strict=False)), **kwargs}
    trains = given.get("training", given.get("train", name not in _UNTRAINED))
    return bool(trains) and given.get("p") != 0
