"""Injects faults into a phase of a rank, in its own process: the rank's part of `bench faults`.

Knows how to cause a fault, not its consequences. Writes what it did to `phase-<rank>` in the scratch folder."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ddp.backends import BACKENDS, SyncKind
from ddp.core.messages.commands import Average, Evaluate, Save, Stop
from ddp.core.settings.faults import PhaseFault
from ddp.core.worker import Action, Step
from ddp.engine.fault_injector import strike
from ddp.engine.loop import TrainingLoop
from ddp.process.clock import now
from ddp.process.scratch import write_whole
from ddp.replica.task import Job

SETTLED = 3
"""Steps after which training counts as under way."""


def phases_of(action: Action, steps: int, averaged: bool, in_step: bool, snapshots: bool) -> tuple[str, ...]:
    """Return the phases that an action belongs to, after `steps` steps. `averaged`: an average was taken in before."""
    match action:
        case Step() if not steps:
            return ("first window",)
        case Step() if steps >= SETTLED and (averaged or in_step):
            return ("step", "collective") if in_step else ("step",)
        case Average():
            return ("snapshot",) if snapshots else ("collective",)
        case Evaluate():
            return ("evaluation",)
        case Save():
            return ("checkpoint",)
        case Stop():
            return ("end",)
    return ()


class PhaseInjector:
    """The faults of a rank that wait for their phase."""

    def __init__(self, job: Job, rank: int, slow: Callable[[float], None], lose: Callable[[], None]) -> None:
        mine = job.phase_faults if not job.life else ()
        self._faults = [fault for fault in mine if fault.rank == rank]
        self._notes, self._slow, self._lose = job.scratch / f"phase-{rank}", slow, lose
        self._snapshots = SyncKind.SNAPSHOT in BACKENDS[job.backend].sync
        self._room: tuple[int, int] | None = None

    def enter(self, action: Action, loop: TrainingLoop, alone: bool = False) -> None:
        """Inject the faults of the phase that `action` begins. `alone`: do not wait for a first average."""
        if self._room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._room)
            self._room = None
        if not self._faults:
            return
        together, steps = loop.replica.gradient_sync, loop.total_steps
        model = getattr(together, "module", loop.replica.model) if together is not None else None  # FSDP trains a copy
        for phase in phases_of(action, steps, alone or loop.after >= 0, model is not None, self._snapshots):
            self.meet(phase, steps, model)

    def meet(self, phase: str, steps: int = 0, model: nn.Module | None = None) -> None:
        """Inject the faults of `phase`, once. For a collective inside a step: in the backward pass of `model`."""
        for fault in [fault for fault in self._faults if fault.phase == phase and steps >= fault.after]:
            self._faults.remove(fault)
            if phase == "collective" and model is not None:
                _in_backward(model, partial(self._happen, fault))
            else:
                self._happen(fault)

    def _happen(self, fault: PhaseFault) -> None:
        if fault.kind == "pause":
            self._pause(fault.value)
            return
        write_whole(self._notes, f"{now()!r} {os.getpid()}")
        match fault.kind:
            case "crash" | "stall" | "raise":
                strike(fault.kind, f"the matrix of faults says so, in phase {fault.phase}")
            case "slow":
                self._slow(fault.value)
            case "lose":
                self._lose()
            case "full":
                self._room = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._room[1]))
            case "coordinator":
                os.kill(int(fault.value), signal.SIGKILL)

    def _pause(self, seconds: float) -> None:
        """Stop this process for `seconds`; write when that began and when it ended.

        The helper counts from when it sees the process stopped: on a loaded machine that may be much later."""
        pid = os.getpid()
        stands = f'state=$(ps -o stat= -p {pid}) || exit; case "$state" in *T*) break;; esac; sleep 0.01'
        helper = subprocess.Popen(["/bin/sh", "-c", f"while :; do {stands}; done; sleep {seconds}; kill -CONT {pid}"])
        began = now()
        write_whole(self._notes, f"{began!r} {pid}")
        os.kill(pid, signal.SIGSTOP)
        helper.wait()  # this thread may run on for a moment
        write_whole(self._notes, f"{began!r} {pid} {now()!r}")


def _in_backward(model: nn.Module, act: Callable[[], None]) -> None:
    """Call `act` in the next backward pass of `model`, before the gradients of its first layer, which other ranks wait for.
    Uses a hook on the output, as hooks of sharded parameters are not called."""
    first = next(module for module in model.modules() if next(module.parameters(recurse=False), None) is not None)

    def forward(module: nn.Module, inputs: object, output: Tensor) -> None:
        if output.requires_grad:
            handle.remove()
            output.register_hook(lambda gradient: act())  # type: ignore[no-untyped-call]

    handle = first.register_forward_hook(forward)
