"""The results of replays as a table and as JSON. Plays nothing."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from bench.base.number_format import plural
from bench.base.tables import markdown
from bench.goodput.closed_forms import expected_ettr
from bench.goodput.replay import RESTART, Replay, ReplayCosts

SHOWN = ("discarded", "saving", "communicating", "waiting", "regrouping", "restoring", "starting", "absent")


@dataclass(frozen=True)
class ReplayedHistory:
    """The failure history against which all recovery strategies were played, and their results."""

    trace: str
    seed: int
    compress: float
    failures: int
    """Number of failures in the hours that training takes without failures."""
    mean_gap_s: float
    """Mean seconds between failures of any ranks, over ten times these hours; Daly's interval follows from it."""
    spares: int
    replace_s: float
    away_s: float
    """Mean seconds for which a rank that failed during `restart` had no machine: `replace_s`, if there were spares
    enough."""
    costs: ReplayCosts
    replays: tuple[Replay, ...]

    @property
    def expected_ettr(self) -> float | None:
        """ETTR of `restart` by Meta's closed form, at the failure rate of its replay; None if it had no failure."""
        replay = next((each for each in self.replays if each.way == RESTART and each.failures), None)
        if replay is None:
            return None
        gap, restart = 3600 * replay.hours / replay.failures, self.away_s + self.costs.restart_s
        return expected_ettr(gap, restart, replay.checkpoint_s, self.costs.save_s)


def lines(history: ReplayedHistory) -> list[str]:
    """Return the table as Markdown, with a line above that describes it and one below with the closed form."""
    costs = history.costs
    gap = "no failure"
    if math.isfinite(history.mean_gap_s):
        gap = f"a failure every {history.mean_gap_s:,.0f} s in ten times these hours, {history.failures:,} within them"
    head = ("way", "failures", "hours", "goodput", "ETTR", "ETT", "UCF", "repeated", *SHOWN)
    return [
        f"{history.trace}, {history.compress:,.4g} times as fast: {gap}; "
        f"{costs.ranks:,} ranks and {plural(history.spares, 'spare')}, {costs.hours:,.4g} h of training in "
        f"{plural(costs.rounds, 'window')} of {plural(costs.window, 'step')}, seed {history.seed}",
        "",
        *markdown(head, map(_row, history.replays)),
        *_expected(history.expected_ettr),
    ]


def _expected(ettr: float | None) -> list[str]:
    formula = f"Meta's closed form for `{RESTART}`, at the rate of failures that it met"
    return [] if ettr is None else ["", f"{formula}: ETTR {100 * ettr:.1f} %"]


def _row(replay: Replay) -> tuple[str, ...]:
    measures, parts = replay.goodput, replay.goodput.parts
    hours = f"{replay.hours:,.1f}" if replay.finished else f"over {replay.hours:,.1f}"
    shares = (measures.goodput, measures.ettr, measures.ett, measures.ucf, parts.repeated)
    shares += tuple(getattr(parts, name) for name in SHOWN)
    return replay.way, str(replay.failures), hours, *(f"{100 * share:.1f} %" for share in shares)


def body(history: ReplayedHistory) -> dict[str, Any]:
    """Return everything for JSON."""
    replays = [
        {**{name: getattr(each, name) for name in _FIELDS}, "goodput": each.goodput.model_dump()}
        for each in history.replays
    ]
    rest = {name: getattr(history, name) for name in _HISTORY}
    rest["mean_gap_s"] = history.mean_gap_s if math.isfinite(history.mean_gap_s) else None
    return {**rest, "costs": asdict(history.costs), "expected_ettr": history.expected_ettr, "replays": replays}


_FIELDS = ("way", "failures", "hours", "finished", "checkpoint_s")
_HISTORY = ("trace", "seed", "compress", "failures", "mean_gap_s", "spares", "replace_s")
