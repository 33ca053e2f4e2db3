"""The words of page one on a way of training: its time, speed and quality, and how to measure what is unknown. Pure.

Every text about a cell comes from the `Option` that its row and its point in the picture come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from bench.base.number_format import plural
from bench.report.blocks import plain
from bench.report.measures.compare import gap, in_points
from bench.report.measures.intervals import MOST_SEEDS, Interval, seeds_to_decide, seeds_to_measure
from bench.report.page import NONE, listed, percent
from bench.report.page_one.answer import Option
from bench.results.cells import Workload
from bench.validate.verdicts.verdict import FAILED, Name

FARTHEST = 100.0
"""Largest ratio that is printed as the end of an interval; a larger end, or one below its inverse, is printed as `over`
or `under` it."""
NAMES = 3
"""Most ways of training named in a text; the others are counted."""
WORDS = 14
"""Most words of a reason."""
UNMEASURED = "not measurable yet"
SEVERAL_TARGETS = "targets differ"
RECOMMENDED = "→ "
"""Mark before the name of a recommended way of training in a table."""
WRONG: Mapping[str, str] = {
    "agreement": "replicas differ",
    "audit": "does not repeat",
    "average": "averages wrong",
    "breakdown": "times do not add up",
    "curve": "another learning curve",
    "data": "wrong data",
    "determinism": "does not repeat",
    "diverged": "diverges",
    "eval_loss": "test loss too high",
    "evaluation": "evaluation wrong",
    "figures": "figures wrong",
    "idle": "a rank idles",
    "ledger": "samples lost or repeated",
    "pairs": "steps differ",
    "peak_memory": "memory wrong",
    "rate": "learning rate wrong",
    "samples": "too many samples",
    "seeds": "seeds are alike",
    "speed": "too slow",
    "status": "a run failed",
    "target": "misses the target",
    "train_loss": "training loss too high",
    "variance": "scatters more",
    "visits": "samples lost or repeated",
    "volume": "wrong traffic",
    "windows": "averaged too late",
}
"""Check -> words for its failure."""
QUALITY: dict[Name, str] = {
    "PASS": "quality OK",
    "FAIL": "failed",
    "INCONCLUSIVE": "not decided",
    "SUSPICIOUS": "too good",
    "XPASS": "unexpectedly OK",
    "XFAIL": "worse, as expected",
    "VARIANCE_SHIFT": "scatters more",
    "REFUSED": "not comparable",
    "EXPIRED": "baseline expired",
    "NO_BASELINE": "not judged",
}
"""Verdict -> its name on page one. The names are about quality only, never about speed. A failure is named after its
check instead: see `state`."""


def names(options: Sequence[Option], among: Sequence[Option], most: int = NAMES) -> str:
    """Return the names of the first `most` options, and the number of the others. Modes suffice if they are unique in
    `among`, else labels."""
    modes = Counter(option.cell.about.mode for option in among)
    short = len(modes) == len(among)
    shown = [plain(option.cell.about.mode if short else option.cell.label) for option in options[:most]]
    rest = len(options) - most
    return listed([*shown, plural(rest, "other")] if rest > 0 else shown)


def state(option: Option, judged: bool = True) -> str:
    """Return the outcome of the option's verdicts in a few words. `judged`: whether there are verdicts."""
    wrong, final = option.failing, option.cell.about.final
    if not judged:
        return NONE
    if wrong is None or wrong.name not in FAILED:
        return QUALITY[standing(option)]
    expected = ", as expected" if wrong.name == "XFAIL" else ""
    if wrong.check == "quality":
        return f"{plain(final.eval_metric)} too {'low' if final.higher_is_better else 'high'}{expected}"
    return WRONG.get(wrong.check, f"{wrong.check.replace('_', ' ')} failed") + expected


def standing(option: Option) -> Name:
    """Return the verdict that `state` describes."""
    if option.failing is not None:
        return option.failing.name
    return "PASS" if option.judged else "NO_BASELINE"


def badges(options: Sequence[Option]) -> dict[str, str]:
    """Return state -> verdict, for the look of a table."""
    return {state(option): standing(option) for option in options}


def target(workload: Workload, option: Option) -> str:
    """Return the target: metric and value."""
    value = option.cell.about.target.value
    return plain(workload.metric or "metric") + ("" if value is None else f" {value:g}")


def arrival(option: Option) -> str:
    """Return whether the option reaches the target sooner than one device: yes, no, or why neither is shown."""
    if option.time is None:
        known = option.cell.about.target.value is not None and not option.several_targets
        missed = known and option.reach.reached < option.reach.n
        return f"no: {option.reach.reached} of {option.reach.n} seeds arrive" if missed else NONE
    if option.sooner or option.later:
        return "yes" if option.sooner else "no"
    return "*disturbed*" if option.disturbed else "*not shown*"


def times(option: Option) -> str:
    """Return its time over one device's for a table: `0.59 ×`."""
    return _shown(option, option.time, lambda ratio: f"{ratio.value:.2f} ×")


def share(option: Option) -> str:
    """Return its share of the ideal speed for a table: `74 %`."""
    return _shown(option, option.efficiency, lambda ratio: percent(ratio.value))


def _shown(option: Option, ratio: Interval | None, show: Callable[[Interval], str]) -> str:
    if ratio is None:
        return NONE
    if ratio.wide:
        return "*unclear*"
    return f"*{show(ratio)}*" if option.disturbed else show(ratio)


def ends(low: float, high: float) -> str:
    """Return `0.45 to 0.53`; extreme ends are cut."""
    least = f"under {1 / FARTHEST:g}" if low < 1 / FARTHEST else f"{low:.2f}"
    return f"{least} to {f'over {FARTHEST:g}' if high > FARTHEST else f'{high:.2f}'}"


def between(ratio: Interval) -> str:
    """Return its interval in words."""
    if ratio.low is None or ratio.high is None:
        return "one seed shows no spread" if min(ratio.n, ratio.n_base) == 1 else "no spread is known"
    return f"95 %: {ends(ratio.low, ratio.high)}"


def percents(ratio: Interval) -> str:
    """Return the interval of a share in words."""
    if ratio.low is None or ratio.high is None:
        return between(ratio)
    return f"95 %: {percent(ratio.low)} to {percent(ratio.high)}"


def of_one(time: Interval) -> str:
    """Return `0.59 of one device's time (95 %: 0.58 to 0.61)`."""
    return f"{time.value:.2f} of one device's time ({between(time)})"


def remedy(option: Option, ratio: Interval, decide: bool) -> str:
    """Return the remedy that would make a ratio known or, with `decide`, show whether it is above or below 1."""
    if option.disturbed:
        return "rerun on idle cores"
    more = seeds_to_decide(ratio) if decide else seeds_to_measure(ratio)
    if more is None:
        return f"more than {MOST_SEEDS} seeds would be needed"
    if ratio.low is None:
        return f"{plural(more, 'more seed')} show{'s' * (more == 1)} a spread"
    return f"about {plural(more, 'more seed')} {'may show it' if decide else 'would narrow it'}"


def more_seeds(options: Sequence[Option]) -> str:
    """Return how many more seeds the verdicts on options need: `2 more seeds`, `1 to 3 more seeds`."""
    counts = sorted(
        {option.failing.lacking for option in options if option.failing is not None and option.failing.lacking}
    )
    if not counts:
        return "More seeds"
    return plural(counts[0], "more seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} more seeds"


def compared(options: Sequence[Option]) -> str:
    """Return what the final metric is compared with: `recorded` runs if all options have a verdict, else `one
    device's`."""
    return "recorded" if options and all(option.judged for option in options) else "one device's"


def difference(option: Option) -> str:
    """Return how far its final metric is from one device's."""
    if option.quality is None:
        return NONE
    return _gap(option, -option.quality.difference.value, option.cell.about.final.higher_is_better)


def allowed(option: Option) -> str:
    """Return the allowed loss of quality: `0.50 pt`; empty without a verdict."""
    if option.quality is None or option.quality.margin is None:
        return ""
    return _gap(option, -option.quality.margin).lstrip("+-")


def permitted(option: Option) -> str:
    """Return `up to 0.50 points worse is allowed`; empty without a verdict."""
    return f"up to {allowed(option).replace(' pt', ' points')} worse is allowed" if allowed(option) else ""


def span(option: Option) -> str:
    """Return the interval of the difference to one device's metric; empty without an interval, or if one seed, which
    has no spread, is all there is."""
    d, higher = None if option.quality is None else option.quality.difference, option.cell.about.final.higher_is_better
    if d is None or d.low is None or d.high is None or d.n < 2:
        return ""
    low, high = (_gap(option, -end, higher) for end in ((d.low, d.high) if higher else (d.high, d.low)))
    return f"{low.removesuffix(' pt')} to {high}"


def _gap(option: Option, behind: float, higher_is_better: bool = True) -> str:
    points = in_points(option.cell, option.rival.solo)
    return gap(behind, option.cell.about.final.eval_metric, higher_is_better, points)


def share_of(some: int, runs: int) -> str:
    """Return `the run`, `all 3 runs` or `2 of 3 runs`."""
    if some < runs:
        return f"{some} of {plural(runs, 'run')}"
    return f"all {runs} runs" if runs > 1 else "the run"


def reason(option: Option) -> str:
    """Return why an option did not pass or is not recommended, in about a dozen words. Reasons of quality come from
    the shown figures."""
    wrong = option.failing
    if wrong is not None:
        text = _quality_reason(option) if wrong.check == "quality" else ""
        text = text or f"{wrong.check}: {wrong.why}"
    elif option.own:
        text = "compared with a baseline of its own, not with one device's"
    elif option.time is None and option.cell.about.target.value is None:
        text = "no target is set"
    elif option.time is None and option.several_targets:
        text = SEVERAL_TARGETS
    elif option.time is None and option.reach.reached < option.reach.n:
        text = f"target reached by {option.reach.reached} of {option.reach.n} seeds"
    elif option.time is None and option.rival.one_clock and not option.rival.elsewhere and option.reach.n:
        text = (
            "times were not measured"
            if option.cell.one_each and not option.cell.timed
            else "one device missed the target"
        )
    else:
        text = ", ".join(option.limits)
    words = text.split()
    return " ".join(words[:WORDS]) + (" …" if len(words) > WORDS else "")


def _quality_reason(option: Option) -> str:
    """Return the reason of a verdict on quality in figures; empty if the figures do not explain the verdict."""
    quality, wrong = option.quality, option.failing
    if quality is None or quality.margin is None or wrong is None:
        return ""
    d, margin = quality.difference, quality.margin
    if wrong.name in FAILED:
        if d.high is not None and d.high < -margin:
            return f"proved > {allowed(option)} worse"
        if d.high is not None and d.high < 0:
            return f"worse, not shown to be by < {allowed(option)}"
        return ""
    if wrong.name == "INCONCLUSIVE":
        few = f"{plural(d.n, 'seed')} {'is' if d.n == 1 else 'are'} too few for a verdict"
        return f"maybe > {allowed(option)} worse" if d.low is None or d.low < -margin else few
    return ""
