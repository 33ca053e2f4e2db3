"""The words of page one on series over numbers of devices: the option that represents each series, how certain the
figures are, what limits the speed, and what to do next.

Prefers options that have a core for each device. Does not judge quality: verdicts do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from bench.base.grouping import grouped
from bench.base.number_format import plural
from bench.report.blocks import plain
from bench.report.measures.compare import TOGETHER
from bench.report.page import Page, listed, percent
from bench.report.page_one.answer import Option
from bench.report.page_one.questions import CAUSES, LEFT, LIMITS, SURE, disturbances, missing_share
from bench.report.page_one.scaling_series import ScalingSeries
from bench.report.page_one.words import more_seeds, permitted, reason, standing, state
from bench.results.cells import Cell
from bench.validate.verdicts.verdict import Name


class Studied(NamedTuple):
    """A series and its options, ordered by way of training and number of devices."""

    series: ScalingSeries
    options: list[Option]


def title(series: ScalingSeries) -> str:
    """Return the title of a series: its workload, strong or weak."""
    w = series.workload
    return f"{w.model}, {series.kind}, batch {w.batch_size}"


def known(option: Option) -> bool:
    """Return whether the option's speed is reliable and that of all its devices, on the machine of one device."""
    measured = option.speed is not None and not option.speed.wide and not option.disturbed
    return measured and not option.rival.distorted


def speed(option: Option) -> float:
    """Return the option's speed over one device's; 0 if unknown."""
    return 0.0 if option.speed is None else option.speed.value


def quicker(option: Option) -> bool:
    """Return whether the option's speed is shown to be above one device's."""
    return known(option) and option.speed is not None and option.speed.low is not None and option.speed.low > 1


def slower(option: Option) -> bool:
    """Return whether the option's speed is shown to be below one device's."""
    return known(option) and option.speed is not None and option.speed.high is not None and option.speed.high < 1


def best_of(page: Page, options: Sequence[Option]) -> Option | None:
    """Return the option that represents a series, of those on several devices: the quickest that passed, else the
    quickest; what has no limits first. Options with more devices than cores count only if there are no others."""
    several = [option for option in options if option.cell.about.world_size > 1 and option.speed is not None]
    cores = None if not options else page.cores(options[0].cell)
    roomy = [option for option in several if cores is None or option.cell.about.world_size <= cores] or several
    return max(roomy, key=lambda each: (known(each), each.passed, not each.limits, speed(each)), default=None)


def facts(
    page: Page, shown: Sequence[Studied], cells: Sequence[Cell], beside: Sequence[Option] = ()
) -> tuple[tuple[str, str], ...]:
    """Return questions on all series together, with their answers. `beside`: options that belong to no series."""
    options = [option for each in shown for option in each.options]
    judged = quality(options) if page.verdicts else "Not judged: there is no baseline."
    lines = (
        ("As good as one device?", judged if len(shown) == 1 else ""),
        (SURE, f"{seeds(options)} {limit(options) if len(shown) > 1 else ''} {disturbances(cells, options)}".strip()),
        (LIMITS, f"{shared(page, [each.series for each in shown])} {losses(page, shown)}".strip()),
        (LEFT, left(page, shown, beside)),
    )
    return tuple((question, " ".join(text.split())) for question, text in lines if text)


def quality(options: Sequence[Option]) -> str:
    """Return the number of ways of training by verdict."""
    single = list({option.cell.name: option for option in options}.values())
    once = " (what is in two series counts once)" if len(single) < len(options) else ""
    groups = grouped((state(option), option) for option in single)
    passed = sum(option.passed for option in single)
    others = [f"{words}: {len(some)}" for words, some in groups.items() if not some[0].passed]
    text = f"{passed} of {plural(len(single), 'result')} are{once}{''.join(f'; {text}' for text in others)}."
    return f"{text} {limit(options)}".strip()


def limit(options: Sequence[Option]) -> str:
    """Return the allowed loss of quality, if it is the same for all options."""
    (text, *more) = {permitted(option) for option in options if permitted(option)} or {""}
    return "" if more or not text else f"{text[0].upper()}{text[1:]}."


def seeds(options: Sequence[Option]) -> str:
    """Return the number of seeds behind the figures."""
    counts = sorted({len(option.cell.one_each) for option in options})
    text = f"{plural(counts[0], 'seed')} of each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    if counts[-1] < 2:
        return f"{text}: it shows no spread."
    return f"{text}; what is recommended is quicker at 95 %."


def shared(page: Page, series: Sequence[ScalingSeries]) -> str:
    """Return what limits more devices than there are cores."""
    most, cores = max(each.sizes[-1] for each in series), page.cores(series[0].solo)
    if cores is None or most <= cores:
        return ""
    return f"{plural(most, 'device')} share {plural(cores, 'core')}: efficiency {percent(cores / most)} at most."


def losses(page: Page, shown: Sequence[Studied]) -> str:
    """Return the causes of lost speed of the option that represents each series, the least efficient series first."""
    causes = []
    for each in shown:
        best = best_of(page, each.options)
        if best is not None and best.efficiency is not None and known(best) and (where := missing_share(best, CAUSES)):
            causes.append((best.efficiency.value, f"{name_of(each)}: {where}"))
    return " ".join(f"{text}." for _, text in sorted(causes))


def left(page: Page, shown: Sequence[Studied], beside: Sequence[Option] = ()) -> str:
    """Return which open points could change the answers, and how to settle them."""
    options = [option for each in shown for option in each.options]
    open_ = _places(shown, "INCONCLUSIVE")
    failed = _places(shown, "FAIL", worded=True)
    unjudged = _places(shown, "NO_BASELINE", "REFUSED")
    texts = []
    if any(option.disturbed for option in options):
        texts.append("Rerun what other programs disturbed.")
    if any(option.rival.elsewhere for option in options):
        texts.append(TOGETHER)
    if failed:
        texts.append(f"Look into {failed}.")
    if unfinished := sum(not option.cell.ok for option in beside):
        texts.append(f"Look into {plural(unfinished, 'way')} of training of which no run finished.")
    if open_:
        undecided = [option for option in options if standing(option) == "INCONCLUSIVE"]
        some = "" if all(option.failing is not None and option.failing.lacking for option in undecided) else "some of "
        texts.append(f"{more_seeds(undecided)} (`bench more`) can decide on {some}{open_}.")
    if unjudged:
        texts.append(f"Without a comparable baseline{'' if open_ else ' (`bench more` proposes one)'}: {unjudged}.")
    return " ".join(texts) or "Nothing required; optional: more seeds would narrow the intervals."


def name_of(each: Studied) -> str:
    """Return the name of a series in a text."""
    return f"{plain(each.series.workload.model)} {each.series.kind}"


def _places(shown: Sequence[Studied], *verdicts: Name, worded: bool = False) -> str:
    """Return where options have one of `verdicts`: `mlp weak: nccl_sync on 2 and 4, cpu_async on 4; ...`. `worded`:
    with the reasons. An option of two series is listed under the first."""
    named: set[str] = set()
    texts = []
    for each in shown:
        sizes: dict[str, list[str]] = defaultdict(list)
        for option in each.options:
            if standing(option) in verdicts and option.cell.name not in named:
                named.add(option.cell.name)
                result = f" ({plain(reason(option))})" if worded else ""
                sizes[plain(option.cell.about.mode)].append(f"{option.cell.about.world_size}{result}")
        if sizes:
            names = ", ".join(f"{mode} on {listed(some)}" for mode, some in sizes.items())
            texts.append(f"{name_of(each)}: {names}")
    return "; ".join(texts)
