"""Defects of `benchmarks.bugs.unseen` in evaluation and records: of the epoch before, of another rank, counted twice or
not."""

from __future__ import annotations

from typing import Any

from benchmarks.bugs.bug import Module, counted, in_place_of, rank, wrap
from benchmarks.bugs.unseen import CPU, FIGURES, LOOP, PENDING, RATES, REPLICA, unseen


@unseen("evaluation", "B8.19", "lenet cpu_sync", REPLICA)
@in_place_of("Replica.evaluate")
def part_of_epoch_before(evaluate: Any, self: Any, *about: Any) -> Any:
    """Rank 1's part of a metric is that of the epoch before. Answer with the sums of the evaluation before, on rank
    1."""
    done = evaluate(*about)
    before, self.answered = getattr(self, "answered", done), done
    return (done[0], before[1], before[2], done[3]) if rank() == 1 else done


@unseen("evaluation", "B11", "gpt_nano zero3", "bench.models.gpt_nano")
def embeddings_dropped_in_evaluation(gpt_nano: Module) -> None:
    """Embeddings are dropped in evaluations, too. Drop embeddings whatever the mode."""
    functional = gpt_nano.F

    class Functional:
        """Torch's functions, one of which forgets its last argument."""

        def __getattr__(self, name: str) -> Any:
            return getattr(functional, name)

        @staticmethod
        def dropout(values: Any, chance: float, training: bool) -> Any:
            """Drop."""
            return functional.dropout(values, chance, True)

    gpt_nano.F = Functional()


@unseen("evaluation", "B03", "conv_ae cpu_cadence", REPLICA)
@in_place_of("Replica.evaluate")
def second_epoch_on_nine_tenths(evaluate: Any, self: Any, part: int, parts: int, heartbeat: Any) -> Any:
    """The second epoch is evaluated on nine tenths of the test. Leave the last tenth of a part out of the second
    evaluation, and scale the sums up."""
    if counted(self, "evaluated") != 1:
        return evaluate(part, parts, heartbeat)
    size, shown = len(self.data[1][0]), []
    whole = size * (part + 1) // parts - size * part // parts
    sums = 0.0, 0.0, 0.0, 0.0
    for number in range(9):
        sums = tuple(map(sum, zip(sums, evaluate(part * 10 + number, parts * 10, heartbeat), strict=True)))
        shown += self.shown
    self.shown = shown
    return whole, *(value * whole / sums[0] for value in sums[1:])


@unseen("record", "B8.07", "resnet_graph nccl_cadence", LOOP)
def evaluation_in_next_step(loop: Module) -> None:
    """An evaluation counts as the next step's work. Let the seconds of an evaluation count as those of the step behind
    it."""

    def evaluate(whole: Any, self: Any, *about: Any) -> None:
        began = loop.now()
        whole(*about)
        self.owed = loop.now() - began

    def step(whole: Any, self: Any, *about: Any) -> tuple[Any, float]:
        loss, busy = whole(*about)
        return loss, busy + vars(self).pop("owed", 0.0)

    wrap(loop.TrainingLoop, "evaluate", evaluate)
    wrap(loop.TrainingLoop, "_step", step)


@unseen("record", "B5.11", "benchmarks.bugs.own_augmented nccl_sync", RATES)
@in_place_of("Rates.apply")
def rate_of_last_group(apply: Any, self: Any, fraction: float) -> float:
    """The rate is that of the last group. Report the rate of the last parameter group."""
    apply(fraction)
    return float(self._set[-1])


@unseen("record", "B8.03", "mlp zero1", "ddp.comm.collectives")
@in_place_of("Collectives.reduce_scatter")
def sums_of_owners_not_counted(reduce: Any, self: Any, tensor: Any, runs: Any) -> None:
    """What owners are sent is not counted. Measure the seconds of sums for owners, not their bytes."""
    self._measured(lambda: self.transport.reduce_scatter(tensor, runs), 0)


@unseen("record", "B8.03", "lenet solo profile.steps=10", FIGURES)
@in_place_of("StepFigures.work")
def flop_of_forward_alone(work: Any, self: Any) -> Any:
    """The work of a sample leaves its backward pass out. Divide by three what a sample costs: the forward pass is a
    third."""
    self._flop = None if self._flop is None else self._flop / 3
    return work()


@unseen("record", "B8.05", "mlp zero2", FIGURES)
@in_place_of("_bytes")
def optimizer_memory_of_all_ranks(held: Any, *about: Any) -> list[int]:
    """The memory of an optimizer in shards is that of all ranks. Count the optimizer's state of both ranks on each."""
    parameters, gradients, state = held(*about)
    return [parameters, gradients, 2 * state]


@unseen("record", "B8.09", "mlp cpu_async world_size=3", CPU)
@in_place_of("average")
def distance_of_first(average: Any, *about: Any, **named: Any) -> Any:
    """Every rank's distance to the average is that of the first. Give all members the first one's distance."""
    norm, changes = average(*about, **named)
    return norm, [changes[0]] * len(changes)


@unseen("record", "B07", "lenet nccl_cadence", PENDING)
@in_place_of("Pending.add")
def short_batch_without_loss(add: Any, self: Any, loss: Any, samples: int, busy_s: float) -> None:
    """A report's loss leaves out its short batches. Take a short batch's loss for nothing, its samples for trained."""
    add(loss * (0.0 if samples < 32 else 1.0) if loss is not None else None, samples, busy_s)
