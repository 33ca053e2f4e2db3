"""Which modes and settings are compared with the oracle. A proof of others would be of something else. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.backends import BACKENDS, SyncKind
from ddp.core.policies import Policy
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.steps import StepSettings
from ddp.engine.modes import PAIRING, engine_of, modes
from ddp.replica.task import Job


@dataclass(frozen=True)
class Way:
    """A mode on a number of ranks."""

    mode: str
    engine: str
    backend: str | None
    policy: Policy
    ranks: int


def provable_modes() -> list[str]:
    """Return the names of the modes that are compared."""
    return [name for name, mode in modes().items() if not unproved(mode.engine, mode.backend)]


def unproved(engine: str, backend: str | None) -> str:
    """Return why a mode of this engine and backend is not compared; empty: it is."""
    spec = engine_of(engine)
    if backend is None or spec == engine_of(PAIRING):
        return ""
    if spec.virtual:
        return f"ranks of engine={engine} are compared with processes, by tests/virtual: prove the mode of processes"
    return f"a backend is compared as engine={PAIRING} runs it, and this is engine={engine}"


def refuse_unproved(how: StepSettings) -> None:
    """Raise ValueError for a step that the oracle does not do: the proof would be of another one."""
    for name, value, why in (
        ("precision", "fp16", "its loss has a factor, and steps are left out where gradients overflow"),
        ("compile", True, "compiled code sums in an order of its own"),
    ):
        if getattr(how, name) == value:
            raise ValueError(_refusal(f"train.{name}", value, why))


def refuse_unproved_job(job: Job) -> None:
    """Raise ValueError for what the oracle does not do in a step of a job, or between steps."""
    refuse_unproved(job.step)
    if job.max_grad_norm is not None:
        raise ValueError(_refusal("train.max_grad_norm", job.max_grad_norm, "the oracle limits no gradients"))
    backend = BACKENDS.get(job.backend)
    averages = backend is not None and not (SyncKind.STEP in backend.sync and job.policy.every_step)
    plain, own = Averaging(), job.averaging
    if averages and own.resolved() != plain.resolved():
        name = next(name for name, value in vars(own).items() if value != getattr(plain, name))
        why = "the oracle averages parameters by samples, and nothing else"
        raise ValueError(_refusal(f"averaging.{name}", getattr(own, name), why))


def _refusal(name: str, value: object, why: str) -> str:
    return f"{name}={value} cannot be proved: {why}; leave {name} out"
