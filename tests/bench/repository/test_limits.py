"""What measurements count, and when their commands fail."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import rejoin, torchft_peer
from benchmarks.slowness import MISSED, RIGHT, SHORT_LIVED, SlowPhase, judged
from ddp.core.messages.commands import Plan
from ddp.core.messages.event_parts import WorkSeconds
from ddp.core.messages.events import Lost, Progress
from ddp.core.messages.join_events import Joined, Joining
from ddp.process.codec import encode

BEGINS, LONG = 6, 50
"""Steps of a rank: when its phase begins, and a length beyond the end of the run."""


def rank_report(at: float, rank: int, compute: float = 0.15) -> Progress:
    return Progress(at, rank, 0, 1, 100, 0.5, 0.0, 0.1, work=WorkSeconds(0.05, compute))


@pytest.mark.parametrize(
    ("lasts", "windows", "factor", "outcome"),
    [
        (LONG, 5, 1.0, MISSED),
        (LONG, 5, 3.0, RIGHT),
        (LONG, 3, 1.0, MISSED),
        (LONG, 2, 1.0, SHORT_LIVED),
        (LONG, 2, 3.0, SHORT_LIVED),
        (LONG, 0, 1.0, SHORT_LIVED),
        (2, 9, 1.0, SHORT_LIVED),
        (2, 9, 3.0, SHORT_LIVED),
        (5, 9, 1.0, MISSED),
    ],
)
def test_only_the_length_of_a_slow_phase_decides_whether_it_counts(
    lasts: int, windows: int, factor: float, outcome: str, tmp_path: Path
) -> None:
    """One that nobody named was left out where its run ended in it, though many windows of it had passed; one that was too
    short to be found counted where it was found."""
    records: list[object] = [Plan((1, 1), (0, 0), False, 0, True, 1, "")]
    for at in range(BEGINS + windows):
        for rank in range(2):
            times = factor if rank == 1 and BEGINS <= at < BEGINS + lasts else 1.0
            records.append(rank_report(float(at), rank, 0.15 * times))
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(map(encode, records)))
    assert list(judged(tmp_path, [SlowPhase(1, BEGINS, lasts, "slow", factor)])) == [("slow", outcome)]


@pytest.mark.parametrize(("kills", "code"), [((1.9, 1.9, 4.9), 0), ((2.1, 2.1, 2.1), 1), ((0.1, 0.1, 5.1), 1)])
def test_a_return_to_full_strength_that_takes_too_long_fails(
    kills: tuple[float, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command printed the limits and returned nothing, however long it took."""
    seconds = iter(kills * len(rejoin.MODES))
    runs = [SimpleNamespace(path=Path(mode) / str(seed)) for mode in rejoin.MODES for seed in range(len(kills))]
    monkeypatch.setattr(rejoin.frame, "bench", lambda *words, **how: None)
    monkeypatch.setattr(rejoin, "find_runs", lambda folder: (runs, []))
    monkeypatch.setattr(rejoin, "stretches", lambda events: (next(seconds), 0.0, 0.0))
    monkeypatch.setattr(sys, "argv", ["rejoin", "--models", "mlp"])
    assert rejoin.main() == code


def test_a_survivor_that_stands_still_for_long_is_seen_in_our_runs_as_in_torchfts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stretches that ended more than five seconds after the kill were left out: eight seconds counted as a tenth of one."""
    stands = [rank_report(at / 10, rank) for rank in (0, 2) for at in (98, 99, 100, 180, 181, 182, 183, 900)]
    victim = [rank_report(9.9, 1), Lost(10.0, 1, ""), Joining(18.0, 1, 8, ""), Joined(18.1, 1, 0), rank_report(18.2, 1)]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(map(encode, [*stands, *victim])))
    run = SimpleNamespace(path=tmp_path, metrics=SimpleNamespace(ledger=SimpleNamespace(exactly_once=True)))
    monkeypatch.setattr(torchft_peer.subprocess, "run", lambda *words, **how: None)
    monkeypatch.setattr(torchft_peer, "find_runs", lambda folder: ([run], []))
    blow = torchft_peer.ours((), tmp_path, 0)
    assert (blow.stall, blow.full) == pytest.approx((8.0, 8.3))
    assert blow.lost == 0
