"""`qsr` in real processes: at a constant learning rate it is a cadence of fixed length, bit for bit."""

from __future__ import annotations

from functools import partial

import pytest

from ddp.backends import paired_backends, world_of
from ddp.core.coordinator import Coordinator
from ddp.core.messages.commands import Plan
from ddp.core.messages.events import Event, RoundClosed
from ddp.core.policies import POLICIES
from tests.runtime import toy

RULE = {"base": 3, "alpha": 0.1, "max_batch_diff": 0}
FIXED = {"anchor": 3, "min_anchor": 3, "max_anchor": 3, "max_batch_diff": 0, "guard": "none"}


def test_at_a_constant_rate_it_is_a_cadence_of_fixed_length(play):
    rule, fixed = play("qsr", "nccl", options=RULE), play("cadence", "nccl", options=FIXED)
    assert len(rule.of(RoundClosed)) > 4
    assert [event.steps for event in rule.of(RoundClosed)] == [event.steps for event in fixed.of(RoundClosed)]
    assert rule.digests == fixed.digests


@pytest.mark.parametrize("backend", paired_backends())
def test_to_the_same_events_both_give_the_same_commands(play, backend):
    played = play("qsr", backend, options=RULE)
    heard = [record for record in played.records if isinstance(record, Event)]
    job, outputs = played.job, []
    for policy in (job.policy, POLICIES["cadence"](**FIXED)):
        world = world_of(backend, job.world_size, 0, job.batch_size, job.epochs, deadline_s=job.deadline_s)
        coordinator, given = Coordinator.start(policy, world, heard[0].at), []
        for event in heard:
            coordinator, more = coordinator.update(event)
            given += more
        outputs.append(given)
    assert outputs[0] == outputs[1]
    assert len([record for record in outputs[0] if isinstance(record, RoundClosed)]) > 4


@pytest.mark.parametrize("backend", paired_backends())
def test_policies_see_rate_samples_loss_and_spread(play, backend):
    task = partial(toy.task, lr=0.2, schedule=toy.rising_schedule)
    played = play("qsr", backend, task, options={"base": 2, "alpha": 0.01}, epochs=3)
    rounds = played.of(RoundClosed)
    rates = [event.lr for event in rounds]
    assert 0.02 <= rates[0] < rates[-1] <= 0.22
    assert [event.samples for event in rounds] == sorted(event.samples for event in rounds)
    assert rounds[-1].samples == 3 * toy.SAMPLES
    assert all(event.loss is not None and 0 < event.loss < 2 for event in rounds)
    assert rounds[-1].loss < rounds[0].loss
    assert any(event.spread > 0 for event in rounds)
    for event in rounds:
        assert (event.spread > 0) == any(event.divergence)
    assert max(plan.anchor for plan in played.of(Plan)) == 2, "the rate rises"
