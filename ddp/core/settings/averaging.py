"""`Averaging`: how the average of a round is computed and applied, for every policy and backend. Settings and weights
alone.

Owns the weight of a contribution, for every backend. Knows no tensors: `ddp.replica.memory.weighted_mean` and
`ddp.replica.optim.outer_optimizer` do."""

from __future__ import annotations

from dataclasses import dataclass, replace

OUTER = {"none": (1.0, 0.0), "momentum": (1.0, 0.9), "nesterov": (0.7, 0.9)}
"""Outer optimizer -> default (learning rate, momentum). Momentum: SlowMo, arXiv:1910.00643; Nesterov: DiLoCo,
arXiv:2311.08105."""
WIRES = ("float64", "float32", "bfloat16")
HIGHEST_RATE = 1e6
"""An outer learning rate above this only diverges."""
STEEPEST = 16.0
"""Largest exponent: samples ** gamma, times a parameter and summed over ranks, must fit a double."""


@dataclass(frozen=True)
class Averaging:
    """How an average is computed and applied. The default is the mean weighted by samples."""

    gamma: float = 1.0
    """Exponent of a rank's weight, samples ** gamma: 1 weighs by samples, 0 equally. An idle rank has weight 0."""
    elastic: float | None = None
    """Fraction of the way to the average that replicas move, in (0, 1] (EASGD, arXiv:1412.6651); null: all of it."""
    outer: str = "none"
    """Optimizer whose gradient is (last average - mean of the replicas): `none`, `momentum`, `nesterov`."""
    outer_lr: float | None = None
    """Learning rate of the outer optimizer; null: 1.0 for momentum, 0.7 for nesterov."""
    outer_momentum: float | None = None
    """Momentum of the outer optimizer, in [0, 1); null: 0.9."""
    optimizer_state: bool = False
    """Whether to average the floating-point state of the ranks' own optimizers (momentum, moments) as well."""
    optimizer_reset: bool | None = None
    """Whether to reset the ranks' own optimizers after a round; null: only with nesterov, unless their state is averaged."""
    wire: str = "float64"
    """What a collective sends: `float64`, exact; `float32` and `bfloat16`, differences to the last average. The backend
    `cpu` sends nothing."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= STEEPEST:
            raise ValueError(
                f"gamma={self.gamma} must be 0 or more, {STEEPEST:g} at most: 1 weighs ranks by samples, 0 alike"
            )
        if self.elastic is not None and not 0 < self.elastic <= 1:
            raise ValueError(f"elastic={self.elastic} must be above 0 and at most 1, or null to take the average")
        if self.outer not in OUTER:
            raise ValueError(f"outer={self.outer!r} is not one of {', '.join(OUTER)}")
        if self.wire not in WIRES:
            raise ValueError(f"wire={self.wire!r} is not one of {', '.join(WIRES)}")
        self._check_outer()
        if self.optimizer_state and self.optimizer_reset:
            raise ValueError("optimizer_state=true with optimizer_reset=true: what is averaged would be lost; drop one")

    def _check_outer(self) -> None:
        lr, momentum = self.outer_lr, self.outer_momentum
        if self.outer == "none" and not lr is momentum is None:
            raise ValueError(
                "outer_lr and outer_momentum need an outer optimizer: use outer=momentum or outer=nesterov"
            )
        if lr is not None and not 0 < lr <= HIGHEST_RATE:
            raise ValueError(
                f"outer_lr={lr} must be above 0 and at most {HIGHEST_RATE:g}, or null for the optimizer's default"
            )
        if momentum is not None and not 0 <= momentum < 1:
            raise ValueError(f"outer_momentum={momentum} must be in [0, 1), or null for the optimizer's default")

    @property
    def outer_rates(self) -> tuple[float, float]:
        """(learning rate, momentum) of the outer optimizer."""
        lr, momentum = OUTER[self.outer]
        return lr if self.outer_lr is None else self.outer_lr, (
            momentum if self.outer_momentum is None else self.outer_momentum
        )

    @property
    def resets(self) -> bool:
        """Whether the ranks' own optimizers are reset after a round."""
        if self.optimizer_reset is None:
            return self.outer == "nesterov" and not self.optimizer_state
        return self.optimizer_reset

    @property
    def apart(self) -> bool:
        """Whether replicas differ from the average after a round."""
        return stays_apart(self.elastic)

    def resolved(self) -> Averaging:
        """Return equivalent settings with every default filled in, so that settings with the same effect are equal."""
        if self.outer == "none":
            return replace(self, optimizer_reset=self.optimizer_reset or None)
        lr, momentum = self.outer_rates
        return replace(self, outer_lr=lr, outer_momentum=momentum, optimizer_reset=self.resets)

    def weight(self, samples: int) -> float:
        """Return the weight of a contribution of `samples`, before division by the sum of all weights."""
        return float(samples) ** self.gamma if samples else 0.0


def stays_apart(elastic: float | None) -> bool:
    """Return whether replicas that move the fraction `elastic` of the way to the average still differ from it."""
    return elastic is not None and elastic < 1
