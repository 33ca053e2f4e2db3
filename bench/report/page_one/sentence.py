"""The answer for one workload in a sentence or two: the recommended way of training, or why there is none and what to
do first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.base.number_format import plural
from bench.report.blocks import plain
from bench.report.page import Page, listed
from bench.report.page_one.answer import Answer, Option, Why, alike, apart
from bench.report.page_one.words import (
    UNMEASURED,
    between,
    difference,
    names,
    of_one,
    permitted,
    reason,
    remedy,
    share_of,
    span,
    standing,
    state,
    target,
)
from bench.results.cells import Cell, Workload
from bench.validate.checks.speed import disturbed

EQUALS, BRIEF = 3, 2
"""Most ways of training named beside the best one, and most undecided ones on a short page."""
CLAIMS = {"PASS": "is as good as one device", "FAIL": "is worse than one device", "XFAIL": "is worse than one device"}
"""Verdict on quality -> its words, for verdicts that decide."""


def sentence(page: Page, workload: Workload, cells: Sequence[Cell], each: Answer, brief: bool = False) -> str:
    """Return the answer, with markup; `brief`: without the figures of quality."""
    model, best = name_of(page, workload), each.chosen
    if each.why == "no solo":
        return f"{_recorded(model, each)} no run of one device is here (`mode=solo` trains one)."
    if best is None:
        ends = listed(cell.status for cell in cells)
        failed = "" if any(cell.ok for cell in cells) else f", and no run of it finished ({ends})"
        return f"**Nothing to compare for {model}**: one device is all that was tried{failed}."
    if each.kind == "use":
        return _use(model, workload, each, best, brief)
    if each.kind == "one":
        assert best.time is not None
        way = f"{plain(best.cell.label)} takes {of_one(best.time)} to {target(workload, best)}"
        return (
            f"**Stay with one device for {model}**: no way of training that is as good is sooner; the quickest, {way}."
        )
    return f"**No recommendation yet for {model}**: {_lacks(workload, cells, each, best)}."


def _recorded(model: str, each: Answer) -> str:
    """Return how ways of training compare with the recorded runs of one device, if no such run is in the tree."""
    passed, options = sum(option.passed for option in each.options), each.options
    if not any(option.judged for option in options):
        return f"**Nothing to compare for {model}**:"
    rest = "Whether it is sooner is not known:"
    if len(options) > 1:
        ways = f"{passed} of {len(options)} ways of training {model}"
        return f"**{ways} are as good as one device**, by its recorded runs. {rest}"
    option = options[0]
    if option.disturbed:
        rest = f"**Other programs used the cores: its times say little.** {rest}"
    who = f"{model} with {plain(option.cell.label)}"
    if option.quality is None or (option.failing is not None and option.failing.check != "quality"):
        return f"**{who}: {state(option)}** ({plain(reason(option))}). {rest}"
    claim = CLAIMS.get(standing(option), "is not yet shown to be as good as one device")
    ends = f", 95 %: {span(option)}" if span(option) else ""
    seeds, against = option.quality.difference.n, f"{option.quality.difference.n_base} recorded runs of one device"
    return (
        f"**{who} {claim}**: {plain(option.cell.about.final.eval_metric)} {difference(option)}{ends} "
        f"({plural(seeds, 'seed')} against {against}; {permitted(option)}). {rest}"
    )


def name_of(page: Page, workload: Workload) -> str:
    """Return the name of a workload: its model, if that is unique."""
    if len([other for other in page.workloads if other.model == workload.model]) > 1:
        return plain(page.title(workload))
    return f"`{plain(workload.model)}`"


def _use(model: str, workload: Workload, each: Answer, best: Option, brief: bool) -> str:
    assert best.time is not None
    assert best.quality is not None
    of = best.quality.difference
    seeds = f"{plural(of.n, 'seed')} against {of.n_base} recorded"
    metric = plain(best.cell.about.final.eval_metric)
    ends = f", 95 %: {span(best)}" if span(best) else ""
    way = f"**Train {model} with {plain(best.cell.label)}**"
    text = f"{way}: it reaches {target(workload, best)} in {of_one(best.time)}, "
    figures = f" ({metric} {difference(best)}{ends}; {permitted(best)}; {seeds})"
    text += f"as good as one device{'' if brief else figures}."
    if each.equals:
        others, are = names(each.equals, each.options, EQUALS), "are" if len(each.equals) > 1 else "is"
        short = f" {others} {are} about as quick, none shown to have better {metric}."
        long = f" Its time cannot be told from that of {others}, whose {metric} is not shown to be better."
        if all(alike(best, other) and not apart(best, other) for other in each.equals):
            short, long = (
                f" {others} cannot be told {way}." for way in ("from it", f"from it, by time or by {metric}")
            )
        text += short if brief else long
    if hopeful := undecided(each, best):
        text += f" Perhaps quicker, but not decided: {names(hopeful, each.options, BRIEF if brief else EQUALS)}."
    return text


def undecided(each: Answer, best: Option) -> list[Option]:
    """Return the options that seem to reach the target sooner than `best`, but whose quality is undecided."""
    return [
        option
        for option in each.options
        if option.undecided
        and option.sooner
        and option.time is not None
        and best.time is not None
        and option.time.value < best.time.value
    ]


def _lacks(workload: Workload, cells: Sequence[Cell], each: Answer, best: Option) -> str:
    """Return why nothing is recommended, and what to do first."""
    who, why = plain(best.cell.label), each.why
    if why in ("spread", "seeds"):
        assert best.time is not None
        passed = [option for option in each.options if option.passed]
        several = f"of {plural(len(passed), 'way')} of training as good as one device none is shown to be sooner"
        text = several if len(passed) > 1 else f"{who}, which alone is as good as one device, is not shown to be sooner"
        return f"{text}. {_takes(workload, best)}; {remedy(best, best.time, decide=True)}"
    if why == "disturbed":
        runs = [run.metrics for cell in cells for run in cell.runs]
        busy = sum(map(disturbed, runs))
        where = share_of(busy, len(runs))
        return f"other programs used the same cores in {where}, so times say nothing. First rerun on idle cores"
    return REASONS[why](each, best)


def _limited(each: Answer, best: Option) -> str:
    return f"the times of {plain(best.cell.label)} are of {listed(best.limits)}"


def _undecided(each: Answer, best: Option) -> str:
    open_ = [option for option in each.options if option.undecided]
    are = "are" if len(open_) > 1 else "is"
    return f"whether {names(open_, each.options)} {are} as good as one device is not decided; more seeds can (`bench more`)"


def _failed(each: Answer, best: Option) -> str:
    return f"nothing passed; {plain(best.cell.label)}: {plain(reason(best))}"


def _takes(workload: Workload, best: Option) -> str:
    assert best.time is not None
    who, goal = plain(best.cell.label), target(workload, best)
    if best.time.wide:
        return f"The time of {who} to {goal} is {UNMEASURED} ({between(best.time)} of one device's)"
    return f"{who} takes {of_one(best.time)} to {goal}"


REASONS: dict[Why, Callable[[Answer, Option], str]] = {
    "baseline": lambda each, best: "no verdict on quality, as there is no baseline; `bench more` proposes one",
    "limited": _limited,
    "missed": lambda each, best: (
        f"nothing that passed has a known time; {plain(best.cell.label)}: {plain(reason(best))}"
    ),
    "undecided": _undecided,
    "failed": _failed,
}
