"""How good the controller is, in virtual time: thresholds of docs/explanation/controller.md. No timing of this machine."""

from __future__ import annotations

import operator
import random
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.controller import MODES, Case, anchor_changes, closed, drawn, followed, overhead, plans, regret
from ddp.core.messages.commands import Plan
from ddp.core.messages.events import RoundClosed
from ddp.core.policies.asynchronous import Async, Overshoot
from ddp.core.policies.cadence import Cadence
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation, simulate
from tests.sim.strategies import examples
from tests.slow import every, few, slow
from tests.spread import spread


@pytest.mark.parametrize(("ranks", "mode"), spread([(2, 8.0), (4, 1.2), (4, 4.0), (8, 8.0), (16, 1.2)], MODES))
def test_the_oracle_would_save_two_percent_at_most(ranks: tuple[int, float], mode: str) -> None:
    """Numbers of ranks, with how far their speeds are apart."""
    policy, blocking = MODES[mode]
    case = Case(drawn(*ranks, 0), blocking, windows=20)
    assert regret(case, case.play(policy)) <= 0.02


@pytest.mark.parametrize(
    ("mode", "size", "spread"),
    [
        ("cadence, blocking", 32, 1.2),
        *slow(("cadence, not blocking", 32, 8.0), ("async, not blocking", 32, 1.2)),
        ("async, not blocking", 64, 1.2),
        *slow(("cadence, blocking", 64, 2.0)),
    ],
)
def test_so_for_many_ranks(mode: str, size: int, spread: float) -> None:
    """The spreads at which whole steps fit worst, in runs that are short."""
    policy, blocking = MODES[mode]
    case = Case(drawn(size, spread, 0), blocking, windows=15)
    assert regret(case, case.play(policy)) <= 0.02


@pytest.mark.parametrize(("mode", "jitter"), few(MODES, [0.0, 0.2]))
def test_half_the_speed_is_followed_within_three_windows_and_back_again(mode: str, jitter: float) -> None:
    policy, blocking = MODES[mode]
    slower, faster = followed(policy, blocking, jitter)
    assert slower <= 3
    assert faster <= 3


@pytest.mark.parametrize("mode", every(3, MODES))
def test_jitter_moves_the_anchor_in_one_window_of_ten_at_most(mode: str) -> None:
    """And costs little: what is held back of a window goes out by what ranks did in most of it, not in a step or two."""
    policy, blocking = MODES[mode]
    for size in (2, 4, 8):
        case = Case(drawn(size, 4.0, 1), blocking, jitter=0.2, windows=60, seed=1)
        played = case.play(policy)
        assert anchor_changes(played, 5) <= 0.1
        assert regret(case, played) <= 0.03


def test_what_is_held_back_goes_out_bit_by_bit() -> None:
    """All of it at once, half-way, this loses 2.6 %."""
    step_s, lost, stages = tuple(0.01 / speed for speed in (1.0, 0.5, 0.7, 0.3)), [], set()
    for seed in range(3):
        case = Case(step_s, True, jitter=0.33, windows=60, seed=seed, epochs=1, wire_s=0.0005)
        held: dict[int, set[int]] = defaultdict(set)

        def watch(played: Simulation, held: dict[int, set[int]] = held) -> None:
            held[played.coordinator.cohort.rounds].add(played.coordinator.cohort.reserve)

        lost.append(regret(case, case.play(Cadence(anchor=16, max_anchor=16), watch=watch)))
        stages |= {len(values) for values in held.values()}
    assert sum(lost) / len(lost) <= 0.023
    assert max(stages) >= 3


def test_who_tells_first_does_not_get_all_that_was_held_back() -> None:
    """A rank of few steps may be through before the others have said anything. It got everything: up to 29 % were lost."""
    for seed in range(6):
        case = Case((0.0005, 0.007, 0.0045), True, jitter=0.4, wire_s=0.0006, windows=16, epochs=30, seed=seed)
        assert regret(case, case.play(Cadence()), skipped=4) <= 0.05


@pytest.mark.parametrize(("mode", "wire_s"), spread(MODES, [0.0002, 0.01, 0.03]))
def test_the_overhead_target_is_held(mode: str, wire_s: float) -> None:
    policy, blocking = MODES[mode]
    case = Case(drawn(4, 4.0, 0), blocking, wire_s=wire_s, windows=100, epochs=1)
    played = case.play(replace(policy, overhead_target=0.05))
    assert overhead(case, played, skipped=10) <= 0.05
    assert plans(played)[-1].anchor < 200


def test_the_anchor_comes_down_after_a_slow_phase_of_the_wire_and_stays() -> None:
    """Costs change with the round: the policy alone is played."""
    policy = Cadence()
    state, _ = policy.init(Case((0.01, 0.01), True).world())
    anchors = []
    for index in range(90):
        counts = state.elche.counts
        busy = tuple(n * 0.01 for n in counts)
        wire = 0.02 if 20 <= index < 40 else 0.001
        event = RoundClosed(0.0, index, counts, busy, wire, (0.0, 0.0), (0.0, 0.0), (False, False))
        state, _ = policy.update(state, event)
        anchors.append(state.elche.anchor)
    assert anchors[15] == 10
    assert anchors[38] >= 100
    assert anchors[-1] == 10
    falling = anchors[38:]
    assert falling == sorted(falling, reverse=True), "without oscillating"
    assert all(after >= before / 2 for before, after in pairwise(anchors))


def starving(played: Simulation, size: int) -> float:
    """Largest part of its time that a rank stood still between its first step and its last, after a first quarter."""
    worst = 0.0
    for rank in range(size):
        mine = sorted((entry.start, entry.stop) for entry in played.trained if entry.rank == rank)
        mine = mine[len(mine) // 4 :]
        busy = sum(stop - start for start, stop in mine)
        worst = max(worst, 1 - busy / (mine[-1][1] - mine[0][0]))
    return worst


@pytest.mark.parametrize(("step_s", "policy"), few([(0.04, 0.1), (0.04, 0.16, 0.16)], [Cadence(), Async()]))
def test_where_nobody_blocks_no_rank_starves(step_s: tuple[float, ...], policy: Cadence | Async) -> None:
    case = Case(step_s, blocking=False, jitter=0.1, windows=80)
    assert starving(case.play(policy), len(step_s)) < 0.01


@pytest.mark.parametrize("policy", [Cadence(), *slow(Async())])
def test_laying_down_snapshots_and_taking_averages_is_held_below_the_target(policy: Cadence | Async) -> None:
    """Averaging alone was counted: windows stayed as short as they were, whatever a round took from the ranks."""
    world = World(2, 20_000, 1, epochs=1, blocking=False, in_step=False)
    costs = Costs(lambda rank, step: (0.001, 0.002)[rank], latency_s=0.0002, reduce_s=0.0002, copy_s=0.001)
    played = simulate(policy, world, costs=costs)
    starts = [entry.start for entry in played.trained]
    rounds = len(closed(played))
    spent = rounds * 2 * costs.copy_s / (max(starts) - min(starts))
    assert 0.005 < spent < 0.02


@pytest.mark.parametrize(("most", "kept"), [(450, 0.4), (45, 0.0)], ids=["in a long epoch", "in a short one"])
def test_an_overshoot_keeps_its_part_of_a_window_that_grows(most: int, kept: float) -> None:
    """It grew by doubling, a gap of the slow rank each time. Not where a rank would take what others need of an epoch."""
    policy = Async()
    state, plan = policy.init(World(2, most, 1, epochs=9, blocking=False, in_step=False))
    assert plan.ahead[1] == min(4, max(2, most // 100))
    for index in range(40):
        counts = state.elche.counts
        busy = (0.001 * counts[0], 0.004 * counts[1])
        event = RoundClosed(float(index), index, counts, busy, 0.002, (0.0,) * 2, (1e-4,) * 2, (False,) * 2)
        state, _ = policy.update(state, event)
    assert state.elche.fewest > (10 if most < 100 else 25) - 5
    ahead = Overshoot(None).ahead(state)
    assert ahead[1] >= kept * state.elche.fewest
    if not kept:
        assert ahead[1] == plan.ahead[1]


@pytest.mark.parametrize("speeds", [(1.0, 0.25, 0.25), (1.0, 0.5, 0.5, 0.25)])
@pytest.mark.parametrize("jitter", [0.0, 0.5, 2.0])
def test_nobody_waits_for_the_last_steps_of_an_epoch(speeds: tuple[float, ...], jitter: float) -> None:
    """Two epochs were all in work, the third was not begun before the first was complete: up to 4 % of a rank's time."""

    def step_s(rank: int, step: int) -> float:
        return 0.0004 / speeds[rank] * (1 + jitter * (hash((rank, step)) % 100) / 100)

    world = World(len(speeds), 90, 1, epochs=30, blocking=False, in_step=False)
    costs = Costs(step_s, latency_s=0.0003, wire_s=0.001, reduce_s=0.0007, report_s=0.02)
    assert starving(simulate(Cadence(guard="none"), world, costs=costs), len(speeds)) < 0.001


@pytest.mark.parametrize("speeds", [(1.0, 0.4), (1.0, 0.25, 0.25)])
@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_runs_short_of_work_is_given_more_before_it_stands_still(
    speeds: tuple[float, ...], seed: int
) -> None:
    """Two steps ahead are a quarter of a slow rank's step for a fast one, and each doubling took a gap: 2 % in a short run.
    One step in fifty takes three times as long here."""

    def step_s(rank: int, step: int) -> float:
        dice = random.Random(f"{seed}.{rank}.{step}")
        return 0.03 / speeds[rank] * dice.uniform(0.7, 1.3) * (3 if dice.random() < 0.02 else 1)

    world = World(len(speeds), 45, 1, epochs=16, blocking=False, in_step=False)
    costs = Costs(step_s, latency_s=0.0002, wire_s=0.002, reduce_s=0.003, report_s=0.06)
    assert starving(simulate(Async(), world, costs=costs), len(speeds)) < 0.002


@pytest.mark.parametrize("speeds", [(1.0, 0.4), (1.0, 0.25, 0.25), (1.0, 1.0), (1.0, 0.5, 0.5, 0.25)])
@pytest.mark.parametrize("policy", [Cadence(guard="none"), Async(guard="none")])
def test_an_epoch_of_one_window_takes_one_round(speeds: tuple[float, ...], policy: Cadence | Async) -> None:
    """A window was done some steps before its epoch, as ranks had run ahead into it: two rounds for each."""
    world = World(len(speeds), 90, 1, epochs=30, blocking=False, in_step=False)
    cost = Costs(
        lambda rank, step: 0.0005 / speeds[rank], latency_s=0.0002, wire_s=0.001, reduce_s=0.0007, copy_s=0.0002
    )
    played = simulate(policy, world, costs=replace(cost, report_s=0.02))
    assert len(closed(played)) <= 40


@pytest.mark.parametrize("speeds", [(1.0, 0.4), (1.0, 0.25, 0.25), (1.0, 1.0, 1.0, 0.5)])
def test_who_begins_a_window_late_ends_it_with_the_others(speeds: tuple[float, ...]) -> None:
    """Ranks were made busy for as long as each other, so who was through with its part of an evaluation first waited for
    the others at the end of the window instead."""
    slowest = 0.01 / min(speeds)
    world = World(len(speeds), 600, 1, epochs=8, blocking=True, in_step=False)
    costs = Costs(
        lambda rank, step: 0.01 / speeds[rank], latency_s=0.0002, wire_s=0.001, report_s=0.02,
        evaluate_s=lambda rank: 2 * slowest * bool(rank),
    )  # fmt: skip
    played = simulate(Cadence(guard="none"), world, costs=costs)
    assert max(max(window.wait_s) for window in closed(played)[8:]) < 1.5 * slowest


@pytest.mark.parametrize(("samples", "step_s", "longest"), [(2, (0.01, 0.04), 1.3), (4, (0.01,) * 4, 0.55)])
@pytest.mark.parametrize("policy", [Cadence(), Async()])
def test_who_is_through_with_a_short_epoch_goes_on_while_it_is_averaged(
    samples: int, step_s: tuple[float, ...], longest: float, policy: Cadence | Async
) -> None:
    """All stood still where an epoch that was done early had still to wait for the one before it: half as long again."""
    world = World(len(step_s), samples, 1, epochs=30, blocking=False, in_step=False)
    costs = Costs(lambda rank, step: step_s[rank], reduce_s=0.03)
    played = simulate(policy, world, costs=costs)
    assert max(entry.stop for entry in played.trained) <= longest


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(2, 5),
    st.sampled_from([1.0, 3.0, 8.0]),
    st.integers(0, 99),
    st.integers(1, 12),
    st.none() | st.integers(0, 8),
    st.booleans(),
)
def test_windows_keep_their_bounds(
    size: int, spread: float, seed: int, anchor: int, lead: int | None, slices: bool
) -> None:
    case = Case(drawn(size, spread, seed), blocking=True, jitter=0.3, windows=12, seed=seed)
    policy = Cadence(anchor=anchor, max_batch_diff=lead, dispatch="partition" if slices else "progressive")
    cuts: dict[tuple[int, ...], set[tuple[int, ...]]] = defaultdict(set)
    divided: set[tuple[tuple[int, ...], int]] = set()

    def watch(played: Simulation) -> None:
        cohort = played.coordinator.cohort
        if played.coordinator.plan is not None:
            cuts[cohort.window].add(played.coordinator.plan.counts)
            divided.add((cohort.window, cohort.reserve))

    played = case.play(policy, watch=watch)
    before: Plan | None = None
    for plan in plans(played):
        assert size <= sum(plan.counts) <= max(case.world().steps, size)
        assert all(n >= 1 for n in plan.counts)
        if lead is not None:
            assert max(plan.counts) - min(plan.counts) <= lead
        if before is not None:
            assert before.anchor / 2 <= plan.anchor <= 2 * before.anchor
        before = plan
    for window in closed(played):
        if window.steps not in cuts:  # its end was divided on the way
            assert lead is None, "a limit on leads is kept"
            assert any(
                held and sum(first) + held == sum(window.steps) and all(map(operator.le, first, window.steps))
                for first, held in divided
            ), "what was trained is what was cut"
            continue
        assert lead is None or max(window.steps) - min(window.steps) <= lead + 1
        whole = [max(counts) for counts in zip(*cuts[window.steps], strict=True)]
        for lone in (rank for rank, n in enumerate(window.steps) if n == 1 < whole[rank] and lead is None):
            others = (rank for rank in range(size) if rank != lone)
            assert not any(0 < window.steps[rank] < whole[rank] for rank in others), "another could take it"
