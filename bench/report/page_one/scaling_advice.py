"""The advice of page one for each series over numbers of devices: one sentence on all series, and a row for each.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bench.report.blocks import BADGE, Verdicts, plain
from bench.report.measures.intervals import Interval
from bench.report.page import NONE, Page, listed, percent
from bench.report.page_one.answer import Option
from bench.report.page_one.scaling_words import Studied, best_of, known, name_of, quicker, slower, speed
from bench.report.page_one.words import UNMEASURED, badges, difference, ends, names, remedy, standing, state

Advice = Literal["several", "one", "open"]
ONE, OPEN = "one device", "none yet"
SPEED, TIME, QUALITY = "speed (95 %)", "time to target", "quality"
"""Headings of columns."""


def advice(options: Sequence[Option], best: Option | None) -> tuple[Advice, str]:
    """Return the advice for a series and its reason. `best`: the option that represents the series (`best_of`)."""
    kind, why = _decided(best)
    hopeful = _hopeful(options) if kind == "one" else []
    return ("open", f"{why}; quicker, but undecided: {names(hopeful, options)}") if hopeful else (kind, why)


def _decided(best: Option | None) -> tuple[Advice, str]:
    if best is None or best.speed is None:
        return "open", "no speed was measured on several devices"
    if best.limits:
        return "open", f"its times are of {listed(best.limits)}"
    if not known(best):
        return "open", f"its speed is {UNMEASURED}; {remedy(best, best.speed, decide=False)}"
    if slower(best):
        return "one", "it is slower"
    if not quicker(best):
        seems = "not shown to be quicker" if best.speed.value >= 1 else "perhaps slower"
        return "open", f"{seems}; {remedy(best, best.speed, decide=True)}"
    if not best.passed:
        return (
            "open",
            "quicker, but its quality is not judged" if best.failing is None else f"quicker, but {state(best)}",
        )
    if best.later:
        return "one", "it is quicker, but later at the target"
    return (
        "several",
        "quicker, and sooner at the target" if best.sooner else "quicker; not shown to be sooner at the target",
    )


def taken(page: Page, studied: Studied) -> Option | None:
    """Return the option that a series recommends; None if it recommends none."""
    best = best_of(page, studied.options)
    return best if advice(studied.options, best)[0] == "several" else None


def lead(page: Page, shown: Sequence[Studied]) -> str:
    """Return the answer for all series as one text with markup."""
    groups: dict[Advice, list[str]] = {"several": [], "one": [], "open": []}
    for each in shown:
        groups[advice(each.options, best_of(page, each.options))[0]].append(name_of(each))
    words: dict[Advice, str] = {
        "several": f"Several devices are quicker, and as good, for {len(groups['several'])} of {len(shown)}: ",
        "one": "Stay with one device for ",
        "open": "No recommendation yet for ",
    }
    texts = [f"**{words[kind]}{listed(names)}**." for kind, names in groups.items() if names]
    meant = {
        "strong": "*Strong* scaling cuts one batch over the devices",
        "weak": "*Weak* scaling gives each device a whole batch",
    }
    return " ".join([*texts, *(f"{meant[kind]}." for kind in meant if any(each.series.kind == kind for each in shown))])


def answers(page: Page, shown: Sequence[Studied]) -> Verdicts:
    """Return a row for each series: the advice, its reason, and the figures of the option that represents the
    series."""
    rows, judged = [], []
    for each in shown:
        best = best_of(page, each.options)
        kind, why = advice(each.options, best)
        who = "" if best is None else f"{plain(best.cell.about.mode)}\N{NO-BREAK SPACE}×{best.cell.about.world_size}"
        judged += [] if best is None else [best]
        rows.append(
            {
                "scaling": f"{name_of(each)}, batch {each.series.workload.batch_size}",
                "take": f"**{who}**" if kind == "several" else ONE if kind == "one" else OPEN,
                "why": _why(each, best, who, kind, why),
                SPEED: _ratio(None if best is None or not known(best) else best.speed),
                "efficiency": NONE if best is None or not known(best) else percent(_efficiency(best)),
                TIME: _ratio(None if best is None or best.disturbed or best.rival.distorted else best.time),
                QUALITY: NONE if best is None else _quality(best, bool(page.verdicts)),
            }
        )
    return Verdicts(tuple(rows), left=3, badges=badges(judged))


def _why(each: Studied, best: Option | None, who: str, kind: Advice, why: str) -> str:
    hopeful = undecided(each.options, best) if kind == "several" else []
    others = plain(hopeful[0].cell.about.mode) if len(hopeful) == 1 else f"{len(hopeful)} others" if hopeful else ""
    text = why if kind == "several" or not who else f"{who}: {why}"
    return f"{text}; undecided: {others}" if others else text


def undecided(options: Sequence[Option], best: Option | None) -> list[Option]:
    """Return the options on the same number of devices as `best` that seem quicker than it and are shown to be quicker
    than one device, but whose quality is undecided."""
    size = 0 if best is None else best.cell.about.world_size
    open_ = [option for option in _hopeful(options) if option.cell.about.world_size == size]
    return [option for option in open_ if best is not None and speed(option) > speed(best)]


def _hopeful(options: Sequence[Option]) -> list[Option]:
    """Return the options that are shown to be quicker than one device, but whose quality is undecided."""
    return [o for o in options if standing(o) == "INCONCLUSIVE" and quicker(o) and not o.limits and not o.later]


def _efficiency(best: Option) -> float | None:
    return None if best.efficiency is None else best.efficiency.value


def _ratio(ratio: Interval | None) -> str:
    if ratio is None or ratio.wide:
        return NONE
    interval = "" if ratio.low is None or ratio.high is None else f" ({ends(ratio.low, ratio.high)})"
    return f"{ratio.value:.2f} ×{interval}"


def _quality(best: Option, judged: bool) -> str:
    return f"{difference(best)}{BADGE}{state(best)}" if judged else difference(best)
