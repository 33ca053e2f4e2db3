"""Questions on a workload that follow the answer of page one: is the quality as good, how sure is that, what limits
the speed, what is left to do.

The answers are about the way of training that page one names. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

from bench.base.number_format import plural
from bench.report.blocks import plain
from bench.report.glossary import meaning
from bench.report.measures.compare import TOGETHER, transports
from bench.report.measures.losses import INSIDE, NAMED, cause, costs, in_words, lost
from bench.report.measures.time_to_target import targets
from bench.report.measures.timing import Timing
from bench.report.page import levels, listed, number, percent
from bench.report.page_one import single_cell
from bench.report.page_one.answer import Answer, Kind, Option
from bench.report.page_one.words import (
    UNMEASURED,
    between,
    difference,
    more_seeds,
    names,
    percents,
    permitted,
    reason,
    remedy,
    share_of,
    span,
    state,
)
from bench.results.cells import Cell, measured
from bench.results.rerun_command import script_of
from bench.validate.checks.speed import disturbed

SURE, LIMITS, LEFT = "How sure is that?", "What limits it?", "What is left to do?"
CAUSES = 2
"""Most causes of lost speed named on a long page."""
OPTIONAL = "Nothing required; optional:"
SHOWN: dict[Kind, str] = {
    "use": "Sooner and as good, both at 95 %:",
    "one": "Later than one device, at 95 %:",
    "open": "Not shown:",
    "nothing": "",
}
"""Kind of answer -> the sentence that states its evidence."""


def facts(cells: Sequence[Cell], each: Answer, brief: bool = False) -> tuple[tuple[str, str], ...]:
    """Return questions on one workload with their answers. `brief`: leave out what the main sentence and the glossary
    say."""
    best = each.chosen
    if best is None:
        return ()
    good, others = as_good(best), disturbances(cells, each.options)
    one_line = brief and each.kind == "use"
    lines = (
        (f"What is {plain(best.cell.about.mode)}?", "" if brief else plain(meaning(best.cell.about.mode))),
        ("As good as one device?", "" if one_line else good),
        (
            SURE,
            f"{SHOWN[each.kind]} {good.removeprefix('Yes: ') if one_line else ''} {_seeds(best, one_line)} {others}",
        ),
        (LIMITS, f"{limit(best, CAUSES if brief else NAMED)} {slow(each, best)}".strip()),
        (LEFT, left(cells, each)),
    )
    return tuple((question, " ".join(text.split())) for question, text in lines if text)


def setup(cells: Sequence[Cell], each: Answer) -> str:
    """Return the result of one device, and the settings common to all: batch, epochs, seeds."""
    solo = next((option.rival.solo for option in each.options), None)
    if solo is None:
        return ""
    about, w = solo.about, solo.workload
    text = f"One device here: mean {plain(about.final.eval_metric)} {levels(solo.eval)}"
    times = Timing.of(solo).seconds
    if all(seconds := measured(times)) and 0 < len(seconds) == len(times) and len(targets([solo])) == 1:
        text += f", target {about.target.value or 0.0:g} after {number(median(seconds))} s"
    sizes = sorted({option.cell.about.world_size for option in each.options} - {1})
    whole = ", ".join(f"{w.batch_size * size} over {size}" for size in sizes)
    text += f". Batch {w.batch_size}{f' ({whole})' if whole else ''}, {plural(w.epochs, 'epoch')}"
    counts = sorted({len(cell.one_each) for cell in cells})
    return f"{text}, {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds."


def as_good(best: Option) -> str:
    """Return whether its result is as good as one device's, in words."""
    if not best.judged or best.quality is None:
        return f"Not judged: {'there is no baseline' if best.unjudged else plain(reason(best))}."
    metric = plain(best.cell.about.final.eval_metric)
    interval = f" ({span(best)})" if span(best) else ""
    words = {"PASS": "Yes", "FAIL": "No", "XFAIL": "No", "INCONCLUSIVE": "Not shown yet"}
    verdict = words.get(best.quality.verdict or "", "Not decided")
    return f"{verdict}: {metric} {difference(best)}{interval}; {permitted(best)}."


def _seeds(best: Option, brief: bool = False) -> str:
    """Return the number of seeds behind the figures of a way of training, its own and one device's."""
    solo, quality = best.rival.solo, best.quality
    ours, theirs = len(best.cell.one_each), 0 if solo is None else len(solo.one_each)
    text = f"{plural(ours, 'seed')} of it{'' if solo is None else f', {theirs} of one device'}"
    judged = None if quality is None or quality.verdict is None else quality.difference
    short = brief and judged is not None and judged.n == ours
    text += f", {judged.n_base} recorded." if judged is not None and short else "."
    timed = best.time or best.speed
    if timed is not None and (timed.n, timed.n_base) != (ours, theirs):
        text += f" Times are of {timed.n} and {timed.n_base} of them."
    if judged is not None and not short:
        looked = "" if judged.n == ours else f"{plural(judged.n, 'seed')} of it "
        text += f" Quality: {looked}against {plural(judged.n_base, 'recorded seed')} of one device."
    return f"{text} One seed shows no spread." if ours == 1 else text


def disturbances(cells: Sequence[Cell], options: Sequence[Option]) -> str:
    """Return how many runs of `cells` were disturbed by other programs, and what that means for the times of
    `options`; empty if none."""
    runs = [run.metrics for cell in cells for run in cell.runs]
    busy = sum(map(disturbed, runs))
    if not busy:
        return ""
    where = share_of(busy, len(runs))
    which = "that run is" if busy == 1 else "those runs are"
    troubled = [option for option in options if option.disturbed]
    of = "" if len(troubled) == len(options) else f" of {names(troubled, options)}" if troubled else ""
    means = f"times{of} say little" if troubled else f"{which} left out of the times here"
    return f"**Other programs used the same cores in {where}**: {means}."


def limit(best: Option, most: int = NAMED) -> str:
    """Return how far the option's speed is from the ideal, and the causes, in shares that add up."""
    ranks, efficiency = best.cell.about.world_size, best.efficiency
    texts = [f"Its times are of {listed(best.limits)}."] if best.limits else []
    if efficiency is not None and best.disturbed:
        texts.append(f"Its speed is {UNMEASURED}: other programs used the cores.")
    elif efficiency is not None and efficiency.wide:
        texts.append(f"Its efficiency is {UNMEASURED} ({between(efficiency)}).")
    elif efficiency is not None and ranks > 1:
        shares = missing_share(best, most)
        words = f"Efficiency {percent(efficiency.value)} ({percents(efficiency)})"
        texts.append(f"{words}; {shares}." if shares else f"{words}.")
    if best.rival.solo is None and (spent := single_cell.spent(best.cell)):
        texts.append(f"Where its ranks' time went: {spent}.")
    return " ".join(texts)


def missing_share(best: Option, most: int = NAMED) -> str:
    """Return the largest causes of the speed that the option lacks: `missing 26 %: 15 % waiting, …`."""
    efficiency, (shares, hidden) = best.efficiency, _shares(best)
    return in_words(1 - efficiency.value, shares, hidden, most) if shares and efficiency is not None else ""


def _shares(option: Option) -> tuple[dict[str, float], bool]:
    """Return category -> extra cost of a sample compared with one device (empty: unknown), and whether collectives lie
    inside the steps."""
    solo = option.rival.solo
    if solo is None or option.rival.distorted:
        return {}, False
    runs = [m for m in option.timing.runs if m.status == "ok"]
    theirs = [m for m in solo.timed if option.disturbed or not disturbed(m)]
    return lost(costs(runs), costs(theirs)), all(m.throughput.efficiency is None for m in runs)


def slow(each: Answer, best: Option) -> str:
    """Return which other ways of training are not shown to be sooner than one device, and where each loses most of its
    speed; empty if nothing is known."""
    causes: dict[str, list[Option]] = {}
    ours, _ = transports([option.rival for option in each.options])
    for option in each.options:
        known = option.time is not None and not option.disturbed and not option.sooner and option is not best
        shares, hidden = _shares(option) if known and option.cell.about.world_size > 1 else ({}, False)
        if shares and max(shares.values()) > 0:
            words = cause(shares, hidden)
            causes.setdefault(words + (through(option, ours) if words == INSIDE else ""), []).append(option)
    texts = [f"{names(some, each.options)}: {words}" for words, some in causes.items()]
    return f"Not shown to be sooner (main cost): {'; '.join(texts)}." if texts else ""


def through(option: Option, ours: Collection[str | None]) -> str:
    """Return the transport of collectives inside the steps, which the breakdown cannot tell from computing. `ours`: the
    transports of the engines that are not PyTorch's."""
    transport = option.cell.about.transport
    alone = "" if not ours or transport in ours else " (PyTorch's modes alone)"
    return f", through {plain(transport)}{alone}"


def left(cells: Sequence[Cell], each: Answer) -> str:
    """Return what would change the answer, and how to get it: the most urgent first."""
    options, best = each.options, each.chosen
    open_ = [option for option in options if option.failing is not None and option.failing.name == "INCONCLUSIVE"]
    unjudged = [option for option in options if option.failing is not None and option.failing.name == "NO_BASELINE"]
    grave = [option for option in options if option.failing is not None and option not in [*open_, *unjudged]]
    grave += [option for option in open_ if option.failing is not None and not option.failing.lacking]
    texts = []
    required = bool(unjudged or grave or each.kind in ("open", "nothing"))
    if busy := [run for cell in cells for run in cell.runs if disturbed(run.metrics)]:
        what = "the disturbed run" if len(busy) == 1 else f"the {len(busy)} disturbed runs"
        forced = "" if all(map(script_of, busy)) else ", with `force=true`"
        required = True
        texts.append(f"First rerun {what} on idle cores: commands under *Reproduce*{forced}.")
    if short := [option for option in open_ if option.failing is not None and option.failing.lacking]:
        texts.append(
            f"{more_seeds(short)} can decide on {names(short, options)}: `bench more` with the folder of the runs."
        )
    if unjudged or each.why == "baseline":
        texts.append("A baseline of one device, to judge quality by: `bench more` proposes one.")
    if best is not None and best.time is not None and each.why in ("seeds", "spread") and not best.disturbed:
        texts.append(f"Whether {plain(best.cell.label)} is sooner: {remedy(best, best.time, decide=True)}.")
    if own := [option for option in options if option.own]:
        texts.append(f"To compare {names(own, options)} with one device: `--baseline` without a baseline of its own.")
    if each.why == "no solo":
        texts.append("One device beside it, to compare times with: `mode=solo` trains it.")
    if each.why == "limited" and best is not None:
        devices = "two devices or more" if best.cell.about.world_size == 1 else "real devices of its own"
        texts.append(TOGETHER if best.rival.elsewhere else f"Train {plain(best.cell.label)} on {devices}.")
    if each.why == "missed" and best is not None:
        unset = best.cell.about.target.value is None
        longer = f"Train {'to one target' if best.several_targets else 'longer: not every seed came to the target'}."
        texts.append("Set a target: times are to it." if unset else longer)
    if grave:
        texts.append(f"Look into {names(grave, options)} ({listed(dict.fromkeys(map(state, grave)))}).")
    if not texts:
        would = "tell apart what is as quick" if each.equals else "narrow the intervals"
        texts.append(f"More seeds would {would}.")
    whole = " ".join(texts)
    return whole if required else f"{OPTIONAL} {whole[0].lower()}{whole[1:]}"
