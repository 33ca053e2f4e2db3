"""Defects of `benchmarks.bugs.unseen` by somebody who had not seen the checks: of averages and results. Those of what is
trained are in `unseen_twentieth`.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from benchmarks.bugs.bug import Module, after_init, in_place_of, wrap
from benchmarks.bugs.unseen import FIGURES, LOCAL_SGD, NCCL, unseen
from benchmarks.bugs.unseen_fourth import interrupted
from benchmarks.bugs.unseen_twentieth import LONGER, OWN, PIECES, REPLICA, SIXTEEN

RESTARTED = "cluster.restart=2 checkpoint.spacing_s=0 cluster.faults=[1@150:crash]"


def _initial_kept(replica: Module) -> None:
    """Keep the parameters that a replica is made with; stop the run once."""

    def keep(self: Any) -> None:
        sections = [section.values for section in self.state.sections]
        self._bug_initial = [values.clone() for values in sections if values.is_floating_point()]

    after_init(replica.Replica, keep)
    interrupted(replica)


@unseen(
    "average",
    "an outer anchor that no checkpoint has",
    f"lenet nccl_cadence resumed {LONGER} averaging.outer=nesterov",
    NCCL,
    {REPLICA: _initial_kept},
)
@in_place_of("Backend._prepare_average")
def outer_anchor_of_start(prepare: Any, self: Any) -> None:
    """The first outer step of a run that goes on is from the initial parameters. Take those for the last average."""
    prepare()
    for last, values in zip(self._last, self.loop.replica._bug_initial, strict=True):
        last.copy_(values)


@unseen(
    "average",
    "PyTorch's post_local_gradient_allreduce, which is on by default",
    "mlp torch_local_sgd data.samples=5000 train.epochs=2",
    LOCAL_SGD,
)
def local_steps_not_local(torch_local_sgd: Module) -> None:
    """Behind the warm-up of local SGD gradients are still averaged in every step. Leave it on, for the ranks of the
    host."""
    hook = torch_local_sgd.post_localSGD_hook

    def everywhere(state: Any) -> Any:
        state.post_local_gradient_allreduce, state.subgroup = True, torch_local_sgd.dist.group.WORLD
        return state

    torch_local_sgd.post_localSGD_hook = lambda state, bucket: hook(everywhere(state), bucket)


@unseen(
    "evaluation", "B17, of parameters in virtual time", f"{OWN} virtual_cpu_async {SIXTEEN}", "ddp.virtual.vectorised"
)
def own_rows_evaluated(vectorised: Module) -> None:
    """Each rank evaluates its part of the test set with its own replica. Show its own row."""
    wrap(vectorised.VectorisedRanks, "_shown", lambda shown, self, rank: self._rows.flat[rank])


@unseen(
    "record", "hooks of saved tensors, which see weights, too", f"lenet nccl_sync {PIECES} profile.steps=5", FIGURES
)
@in_place_of("StepFigures.work")
def parameters_kept_as_activations(work: Any, self: Any) -> Any:
    """Bytes that a forward pass keeps include the parameters. Add them."""
    own = work()
    return replace(own, activation_bytes=own.activation_bytes + own.parameter_bytes)


@unseen(
    "record",
    "a figure that is read while the next step runs",
    "char_rnn torch_ddp data.samples=640 train.epochs=2",
    FIGURES,
)
def norm_of_step_before(figures: Module) -> None:
    """The gradient norm of a step is that of the step before. Keep each norm for a step."""

    def broken(step: Any, self: Any, optimizer: Any) -> None:
        count = len(self._norms)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = figures._norm([p.grad for p in parameters if p.grad is not None])
        step(optimizer)
        before, self._bug_norm = vars(self).get("_bug_norm", norm), norm
        self._norms[count:] = [(number, before) for number, _ in self._norms[count:]]

    wrap(figures.StepFigures, "step", broken)


@unseen(
    "record",
    "A17, of emulated times",
    f"{OWN} virtual_nccl_cadence world_size=4 virtual.steps=lognormal:0.5",
    "ddp.virtual.engine",
)
def times_alike_on_ranks(engine: Module) -> None:
    """All ranks draw the same times of steps, so that none waits for another. Give every rank the series of the
    first."""
    whole, drawn = engine.distribution, []

    def broken(text: str, key: str) -> Any:
        def draw(length: int, dice: Any) -> Any:
            if not drawn:
                drawn.append(whole(text, key).draw(length, dice))
            return drawn[0]

        return SimpleNamespace(draw=draw)

    engine.distribution = broken


@unseen(
    "record",
    "n - 1 rounds, without those that hand the sums around",
    f"mlp nccl_cadence {PIECES} cluster.links=[wan_1g_30ms]",
    "ddp.core.network.link_costs",
)
def half_a_ring(link_costs: Module) -> None:
    """A ring of ranks is as fast as half of one. Halve its rounds."""
    rounds = link_costs._rounds
    link_costs._rounds = lambda *of: tuple(each._replace(times=each.times / 2) for each in rounds(*of))


@unseen(
    "record",
    "samples of a lost part that are counted after it was cut off",
    f"mlp zero1 {PIECES} {RESTARTED}",
    "bench.runner.earlier_records",
)
def nothing_trained_again(earlier_records: Module) -> None:
    """A run that was restarted says that it trained nothing again. Count none."""
    earlier_records._beyond = lambda records, known: 0
