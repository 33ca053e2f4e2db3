"""Batch norm cannot be trained on one sample: what no cut of a batch makes where the data of one device holds none."""

from __future__ import annotations

from functools import partial

import pytest
from torch import nn

from ddp.backends import BACKENDS, paired_backends
from ddp.core.errors import RankFailed
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Merged, Progress, Ready
from ddp.core.policies import POLICIES
from ddp.core.samples.spans import measure
from ddp.engine import elche, solo
from ddp.graph import engine as graph
from ddp.replica.norms import least_samples
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import every

pytestmark = pytest.mark.usefixtures("in_process")

CELLS = [(f"{policy}-{backend}", policy, backend, elche) for policy in POLICIES for backend in paired_backends()]
CELLS += [(name, "sync", name, elche) for name in BACKENDS if name not in paired_backends()]
CELLS += [("graph", "sync", "nccl", graph)]


@pytest.mark.parametrize(
    ("policy", "backend", "engine"), every(2, [cell[1:] for cell in CELLS]), ids=[cell[0] for cell in CELLS]
)
def test_what_one_device_trains_is_trained_on_three(play: Play, policy: str, backend: str, engine: object) -> None:
    """14 samples in batches of 4: the last global batch is of two samples, the last one of a device too."""
    played = play(policy, backend, partial(toy.task, norm=True, samples=14), engine=engine, world_size=3, batch_size=4)
    assert not played.of(Drop)
    assert sum(event.samples for event in played.of(Progress)) == 2 * 14
    assert sum(measure(event.spans) for event in played.of(Merged)) == 2 * 14
    assert len(played.digests) == 1
    assert {event.least for event in played.of(Ready)} == {2}


def test_what_one_device_cannot_train_fails_with_the_same_words(play: Play) -> None:
    """13 samples in batches of 4: the last one is alone, however batches are cut."""
    words, task = [], partial(toy.task, norm=True, samples=13)
    for world_size, engine in ((1, solo), (3, elche)):
        with pytest.raises(RankFailed, match="Expected more than 1 value per channel when training") as caught:
            play("sync", "nccl", task, engine=engine, world_size=world_size, batch_size=4, tolerate_loss=False)
        words.append(str(caught.value))
    assert words[0] == words[1]


def test_statistics_of_a_sample_need_no_second_one() -> None:
    """Group and instance norm are of one sample, layer norm of one value of it."""
    lone = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm(4)
    assert [least_samples(nn.Sequential(nn.Conv2d(1, 4, 3), norm)) for norm in lone] == [1, 1, 1]
    assert [least_samples(nn.Sequential(norm)) for norm in (nn.BatchNorm2d(4), nn.SyncBatchNorm(4))] == [2, 2]
