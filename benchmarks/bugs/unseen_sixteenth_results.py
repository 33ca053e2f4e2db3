"""More defects of `benchmarks.bugs.unseen_sixteenth`: schedules, averages, evaluations, what is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, once_made, wrap
from benchmarks.bugs.unseen import ATTENTION, CPU, LOOP, OUTER, PASSES, REPLICA, SUMMARY, unseen
from benchmarks.bugs.unseen_seventh import stopped


@unseen(
    "schedule",
    "Accelerate, of schedulers that are not told of ranks",
    "benchmarks.bugs.own_sampled cpu_sync",
    "ddp.replica.optim.lr_schedule",
)
def scheduler_steps_for_each_rank(lr_schedule: Module) -> None:
    """A scheduler of PyTorch's steps once for every rank. Look two steps on for each one."""
    wrap(lr_schedule.LRSchedule, "__call__", lambda call, self, seen: call(min(2 * seen, 1.0)))


@unseen(
    "schedule",
    "Lightning, of hooks when an epoch is gone on with",
    "benchmarks.bugs.own_decaying cpu_cadence resumed checkpoint.unit=averages checkpoint.every=2",
    LOOP,
    {REPLICA: lambda replica: stopped(replica, 240)},
)
@in_place_of("TrainingLoop.restore")
def callbacks_called_again(restore: Any, self: Any, *about: Any) -> None:
    """A run that goes on calls the callback of epochs that have begun once more. Forget which epochs have begun."""
    restore(*about)
    self.begun = -1


@unseen(
    "average",
    "B5.17, of a setting that never arrives",
    "lenet cpu_async averaging.outer=momentum averaging.outer_momentum=0.5",
    OUTER,
)
def outer_momentum_not_read(outer_optimizer: Module) -> None:
    """The outer optimizer has the usual momentum, whatever is asked for. Leave the setting out."""
    outer = outer_optimizer.outer
    outer_optimizer.outer = lambda averaging, like: outer(replace(averaging, outer_momentum=None), like)


@unseen(
    "average",
    "a replica that takes part before it is healed",
    "mlp cpu_async cluster.restart=1 cluster.faults=['1@900:crash']",
    CPU,
)
@in_place_of("Backend.load_state_dict")
def returned_with_initial_parameters(load: Any, self: Any, state: Any) -> None:
    """A rank that returns brings its initial parameters into an average before it has the others'. Load nothing."""
    self._applied = state["averaged"]


@unseen("evaluation", "a mask that is made where the model trains", "gpt_nano torch_ddp", ATTENTION)
@in_place_of("Layer._attend")
def evaluated_without_mask(attend: Any, self: Any, x: Any) -> Any:
    """Attention is causal in training alone: in evaluations a token sees the one that it is to predict. Attend to
    everything in evaluation mode."""
    causal, self.causal = self.causal, self.causal and self.training
    try:
        return attend(x)
    finally:
        self.causal = causal


@unseen("evaluation", "a compiler that does not guard on the mode", "lenet nccl_sync train.compile=true", PASSES)
def evaluated_by_training_code(passes: Module) -> None:
    """A model that is compiled is evaluated by the code for training. Evaluate in training mode; running statistics are
    put back."""

    @contextmanager
    def training(model: Any) -> Iterator[None]:
        kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
        model.train()
        yield
        model.eval()
        for buffer, values in kept:
            buffer.copy_(values)

    wrap(passes.StepPasses, "eager", lambda eager, self: training(self._model) if self._compiled else eager())


@unseen("record", "B8.05, of a clock that is told of none", "mlp nccl_cadence", SUMMARY)
@in_place_of("EpochFold._seconds")
def clock_goes_on_in_evaluations(seconds: Any, self: Any, time: float) -> float:
    """The clock of training does not stand still for evaluations. Count all seconds since the last rank was ready."""
    return self.before + max(time - max(self._ready.values()), 0.0) if self._ready else seconds(time)


@unseen("record", "B8.03, of what is emulated", "mlp cpu_cadence cluster.speeds=[1,0.5]", "ddp.process.slowdown")
@once_made("Slowdown")
def half_as_slow(own: Any) -> None:
    """A rank that is to be half as fast takes half as long again for a step, not twice as long. Halve what a step is
    made longer by."""
    own._factor = own._own = own._own / 2
