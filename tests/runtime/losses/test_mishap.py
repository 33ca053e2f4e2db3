"""Faults on purpose, in real processes: what the script says happens, and the run goes on without whom it lost."""

from __future__ import annotations

import os
import signal
import struct
import time
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path

import pytest

from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Apply, Drop
from ddp.core.messages.events import Alive, Failed, Finished, Merged, Shared, Tick
from ddp.core.policies import POLICIES
from ddp.core.samples.spans import union
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.faults import Fault, parse
from ddp.engine.fault_injector import FaultInjector, LossyChannel
from ddp.engine.ranks import RankProcesses
from ddp.process.channel import Channel, PeerGone
from ddp.process.codec import encode
from ddp.process.slowdown import Slowdown
from ddp.replica.task import Job
from tests.runtime import toy
from tests.runtime.conftest import Play, Played
from tests.slow import every, few

BACKENDS = [("cadence", "cpu"), ("cadence", "nccl")]
CAUSES = {
    "crash": "killed by signal 9",
    "raise": "RuntimeError: the fault script says so: 1@7:raise",
    "stall": "silent for",
}


def scripted(play: Play, policy: str, backend: str, *faults: str, **fields: object) -> Played:
    script = tuple(parse(text) for text in faults)
    defaults = {"world_size": 3, "deadline_s": 2.0, "epochs": 3, "options": toy.short_windows(policy)}
    return play(policy, backend, faults=script, **{**defaults, **fields})


class Noted(Slowdown):
    """Notes by how much it is slowed down."""

    def __init__(self, happened: list[object]) -> None:
        super().__init__(1.0)
        self.slow_down = happened.append
        self.delay_input = lambda factor: happened.append(("input", factor))
        self.heal = lambda: happened.append("healed")


def trained_once(played: Played) -> bool:
    """Every sample of every epoch is in the model once; `union` refuses one that is there twice."""
    for epoch in range(played.job.epochs):
        spans = [span for line in played.of(Merged) if line.epoch == epoch for span in line.spans]
        if union((), tuple(spans)) != ((0, toy.SAMPLES),):
            return False
    return True


@pytest.mark.parametrize(("cell", "kind"), few([*BACKENDS, ("sync", "nccl")], CAUSES))
def test_a_rank_is_lost_as_the_script_says(play: Play, cell: tuple[str, str], kind: str) -> None:
    played = scripted(play, *cell, f"1@7:{kind}")
    (drop,) = played.of(Drop)
    assert drop.rank == 1
    assert CAUSES[kind] in drop.reason
    assert [event.rank for event in played.of(Failed)] == [1] * (kind == "raise")
    assert sorted(event.rank for event in played.of(Finished)) == [0, 2]
    assert trained_once(played)


def test_a_rank_that_is_stopped_is_dropped_whatever_is_sent_to_it(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order is more than its end of the channel holds."""
    monkeypatch.setattr("ddp.process.channel.encode", lambda message: encode(message) + b" " * 500_000)
    played = scripted(play, "cadence", "cpu", "1@7:stall")
    assert [(drop.rank, "silent for" in drop.reason) for drop in played.of(Drop)] == [(1, True)]
    assert trained_once(played)


@pytest.mark.parametrize(("policy", "backend"), every(3, [*BACKENDS, ("sync", "nccl"), ("async", "cpu")]))
def test_a_slow_rank_is_not_taken_for_a_lost_one(play: Play, policy: str, backend: str) -> None:
    played = scripted(play, policy, backend, "1@3:slow*20", deadline_s=5.0)
    assert played.of(Drop) == []
    assert len(played.of(Finished)) == 3
    assert trained_once(played)


@pytest.mark.parametrize(("policy", "backend"), every(2, BACKENDS))
def test_two_ranks_are_lost_one_after_the_other(play: Play, policy: str, backend: str) -> None:
    played = scripted(play, policy, backend, "1@5:crash", "2@12:raise", epochs=8)
    dropped = [drop.rank for drop in played.of(Drop)]
    # Where nobody waits for another, rank 2 may be at its step before rank 1 is.
    assert (sorted(dropped) if backend == "cpu" else dropped) == [1, 2]
    assert trained_once(played)


@pytest.mark.parametrize(("policy", "backend"), every(2, BACKENDS))
def test_a_lost_message_ends_in_bounded_time(play: Play, policy: str, backend: str) -> None:
    """What was not heard of is missed: its rank is given up, or it is at odds with the protocol, which ends the run."""
    with suppress(ProtocolError):
        played = scripted(play, policy, backend, "1@7:lose")
        assert {drop.rank for drop in played.of(Drop)} <= {1}
        assert trained_once(played)


def test_a_lost_message_does_not_arrive_and_the_next_one_does() -> None:
    """Signs of life are not what is lost: one less is nothing that anybody has to notice."""
    ours, theirs = Pipe()
    channel, other = LossyChannel(ours), Channel(theirs)
    channel.lose()
    sent = [Alive(1.0, 0), Shared(2.0, 0, 1), Alive(3.0, 0), Shared(4.0, 0, 2)]
    for message in sent:
        channel.send(message)
    arrived: list[object] = []
    while len(arrived) < 3:
        arrived += other.receive(1.0)
    assert arrived == [sent[0], *sent[2:]]


def test_a_peer_that_stops_within_a_message_holds_nobody_up() -> None:
    """The coordinator waited for the rest of it for ever."""
    ours, theirs = Pipe()
    channel, messages = Channel(ours), [Alive(1.0, 0), Shared(2.0, 0, 1, "m" * 20_000)]
    parts = b"".join(struct.pack("!i", len(body)) + body for body in map(encode, messages))
    for place, arrived in ((0, messages[:1]), (1, []), (2, [messages[1], messages[0]])):
        os.write(theirs.fileno(), (parts[:100], parts[100:9000], parts[9000:] + parts[:100])[place])
        assert channel.receive(0.0) == arrived
    theirs.close()
    with pytest.raises(PeerGone):
        channel.receive(0.0)


def test_a_peer_that_does_not_read_holds_nobody_up_and_misses_nothing(tmp_path: Path) -> None:
    """The coordinator waited for room at a rank that was stopped, for ever: no deadline ended that, no other was heard."""
    (ours, slow), (beside, quick) = Pipe(), Pipe()
    ranks = RankProcesses(Job(toy.task, 1, 8, 0, 2, POLICIES["sync"](), "nccl", tmp_path))
    ranks._channels, ranks._runners = {}, {}
    for rank, connection in enumerate((ours, beside)):
        ranks._connect(rank, connection)
    orders = [Apply(0, number, "so " * 10_000) for number in range(50)]
    for order in orders:
        ranks.send(order)
    ranks.send(Apply(1, 7, "now"))
    assert Channel(quick).receive(0.0) == [Apply(1, 7, "now")]
    Channel(quick).send(Alive(1.0, 1))
    assert ranks.events(60.0) == [Alive(1.0, 1)]
    channel, came = Channel(slow), list[object]()
    limit = time.monotonic() + 60
    while len(came) < len(orders) and time.monotonic() < limit:
        came += channel.receive(0.0)
        ranks.events(0.0)
    assert came == orders
    for order in orders:
        ranks.send(order)
    ranks.drop(0)
    assert [type(event) for event in ranks.events(0.0)] == [Tick]


def test_each_fault_happens_once_before_its_step() -> None:
    happened: list[object] = []
    faults = (Fault(1, 3, "slow", 4.0), Fault(1, 3, "lose"), Fault(0, 3, "crash"))
    script = FaultInjector(faults, 1, Noted(happened), lambda: happened.append("lost"), print)
    for step in (2, 3, 3, 4):  # an exchange that breaks has its step done again
        script.meet(step)
    assert happened == [4.0, "lost"]
    other = FaultInjector(faults, 2, Noted(happened), lambda: happened.append("lost"), print)
    for step in range(5):
        other.meet(step)
    assert happened == [4.0, "lost"]


def test_what_lasts_happens_again_in_its_order_where_a_run_goes_on() -> None:
    happened: list[object] = []
    faults = (Fault(0, 9, "heal"), Fault(0, 2, "slow", 3.0), Fault(0, 4, "input", 2.0), Fault(0, 5, "lose"))
    script = FaultInjector(faults, 0, Noted(happened), lambda: happened.append("lost"), print, done=8)
    assert happened == [3.0, ("input", 2.0)]
    script.meet(9)
    assert happened[2:] == ["healed"]


def test_a_rank_that_was_slow_is_so_again_when_the_run_goes_on(play: Play, tmp_path: Path) -> None:
    """What it was slowed down by lies before the checkpoint; its steps stay slow all the same, and what hit it once does
    not do so again."""
    fields = {"epochs": 4, "checkpoints": Checkpointing(1, "epochs", spacing_s=0.0)}
    scripted(play, "sync", "nccl", "1@3:slow*50", **fields, checkpoint_folder=tmp_path)
    rest = scripted(play, "sync", "nccl", "1@3:slow*50", "1@2:crash", **fields, resume=max(tmp_path.glob("0*")))
    slices = [path.read_text() for path in sorted(rest.job.scratch.glob("slices-*.jsonl"))]
    slowed = [text.count('"slowdown"') for text in slices]
    assert [slowed[0], slowed[2]] == [0, 0]
    assert slowed[1] > 0  # of how many steps: a sleep that a busy machine ends late is taken off the next
    assert rest.of(Drop) == []


@pytest.mark.parametrize(("kind", "number"), [("crash", signal.SIGKILL), ("stall", signal.SIGSTOP)])
def test_signals_go_to_the_process_itself(monkeypatch: pytest.MonkeyPatch, kind: str, number: int) -> None:
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, signum: sent.append(signum))
    FaultInjector([Fault(0, 0, kind)], 0, Slowdown(1.0), lambda: None, print).meet(0)
    assert sent == [number]
