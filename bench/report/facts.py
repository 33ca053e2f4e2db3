"""What a reader of page one asks next: is it as good, how sure is that, what limits it, what is left to do.

Speaks of the ways of training that the answers name. Decides nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from statistics import fmean

from bench.base.figures import plural
from bench.report.answer import Answer, Option
from bench.report.blocks import plain
from bench.report.compare import gap, mean_share
from bench.report.page import Page, listed, percent
from bench.results.cells import Workload
from bench.validate.checks.speed import disturbed
from ddp.core.policies import POLICIES

FARTHEST = 100.0
"""An interval's end beyond this ratio, or below its inverse, is told no closer."""
LOSSES = {
    "wait": "waiting for others",
    "comm": "exchanging",
    "data": "making batches",
    "other": "between its steps",
}
LEAST = 0.03
"""Of the ranks' time: less limits nothing."""

Named = Sequence[tuple[Workload, Answer, Option]]


def facts(page: Page, answers: Sequence[tuple[Workload, Answer]]) -> tuple[tuple[str, str], ...]:
    """Return questions and their answers; of several workloads, each says of which."""
    named = [(workload, each, each.chosen) for workload, each in answers if each.chosen is not None]
    if not named:
        return ()

    def of_each(say: Callable[[Option], str]) -> str:
        return _joined([(workload.model if len(answers) > 1 else "", say(best)) for workload, _, best in named])

    modes = list({best.cell.about.mode: best for *_, best in named}.values())
    lines = [
        *[(f"What is {plain(best.cell.about.mode)}?", _meaning(best)) for best in modes],
        ("As good as one device?", of_each(as_good)),
        ("How sure is that?", f"{of_each(_seeds)} {_disturbances(page)}".strip()),
        ("What limits it?", of_each(lambda best: _limit(page, best))),
        ("What is left to do?", _left([each for _, each, _ in named])),
    ]
    return tuple((question, text) for question, text in lines if text)


def _joined(texts: Sequence[tuple[str, str]]) -> str:
    """Say once what holds for all."""
    if len({text for _, text in texts}) == 1:
        return texts[0][1]
    return " ".join(f"`{plain(model)}`: {text}" if model else text for model, text in texts if text)


def _meaning(best: Option) -> str:
    policy = POLICIES.get(best.cell.about.policy or "")
    if policy is None:
        return ""
    name, _, text = (inspect.getdoc(inspect.getmodule(policy)) or "").partition("\n")[0].partition(": ")
    sentence = text.partition(". ")[0].rstrip(".")
    return f"{sentence[:1].upper()}{sentence[1:]}." if name.strip("`") == best.cell.about.policy else ""


def as_good(best: Option) -> str:
    """Return whether its result is as good as one device's, in words."""
    quality, metric = best.quality, best.cell.about.final.eval_metric
    if quality is None or quality.verdict is None or quality.margin is None:
        return "Not judged: there is no baseline."
    d = quality.difference
    figure = f"{plain(metric)} {gap(-d.value, metric)}"
    if d.low is not None and d.high is not None:
        figure += f" ({gap(-d.low, metric)} to {gap(-d.high, metric)})"
    allowed = f"{gap(-quality.margin, metric).lstrip('+-')} less is allowed"
    words = {"PASS": "Yes", "FAIL": "No", "INCONCLUSIVE": "Not shown yet"}
    return f"{words.get(quality.verdict, 'Not decided')}: {figure}; {allowed}."


def _seeds(best: Option) -> str:
    solo = best.rival.solo
    ours, theirs = len(best.cell.one_each), 0 if solo is None else len(solo.one_each)
    return f"{plural(ours, 'seed')} of it, {theirs} of one device." + (
        " One seed shows no spread." if ours == 1 else ""
    )


def _disturbances(page: Page) -> str:
    busy = sum(map(disturbed, page.runs))
    if not busy:
        return ""
    return f"**Other programs used the same cores in {busy} of {plural(len(page.runs), 'run')}: times are rough.**"


def _limit(page: Page, best: Option) -> str:
    """Return how far from the ideal it is, and where its ranks' time went instead."""
    speed, ranks = best.speed, best.cell.about.world_size
    texts = [f"Its times are of {listed(best.limits)}."] if best.limits else []
    if speed is not None:
        texts.append(
            f"It has {percent(speed.value / best.rival.ideal)} of the speed of {plural(ranks, 'device')} together."
        )
    lost = [f"{percent(share)} {words}" for name, words in LOSSES.items() if (share := _share(best, name)) >= LEAST]
    texts += [f"Of their time its ranks lose {listed(lost)}."] if lost else []
    cores = page.cores(best.cell)
    texts += [f"{plural(ranks, 'rank')} ran on {plural(cores, 'core')}."] if cores is not None else []
    return " ".join(texts)


def _share(best: Option, category: str) -> float:
    shares = [share for m in best.cell.timed if (share := mean_share(m, category)) is not None]
    return fmean(shares) if shares else 0.0


def _left(answers: Sequence[Answer]) -> str:
    """Return what would change the answers, and how to have it."""
    seeds = sum(each.seeds for each in answers)
    options = [option for each in answers for option in each.options]
    grave = [option for option in options if option.failing is not None and option.failing.name != "INCONCLUSIVE"]
    open_ = sum(option.failing is not None for option in options) - len(grave)
    texts = []
    if seeds:
        texts.append(f"Train {plural(seeds, 'more seed')} of what is named above.")
    if open_:
        texts.append(f"{plural(open_, 'way')} of training {'is' if open_ == 1 else 'are'} undecided for want of seeds.")
    if seeds or open_:
        texts.append("`bench more` with the folder of the runs trains them.")
    if grave:
        names = list(dict.fromkeys(option.failing.check for option in grave if option.failing is not None))
        texts.append(f"Look into {plural(len(grave), 'way')} of training that did not pass ({listed(names)}).")
    return " ".join(texts) or "Nothing: more seeds would only narrow the intervals."


def ends(low: float, high: float) -> str:
    """Return `0.45 to 0.53`; ends that nobody could use are cut."""
    least = f"under {1 / FARTHEST:g}" if low < 1 / FARTHEST else f"{low:.2f}"
    return f"{least} to {f'over {FARTHEST:g}' if high > FARTHEST else f'{high:.2f}'}"
