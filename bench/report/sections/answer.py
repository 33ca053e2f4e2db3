"""Page one: what to take, how sure that is, and whatever did not pass. Everything else folds under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from bench.base.figures import plural
from bench.report import alone
from bench.report.answer import Answer, Interval, Kind, Option, answer, gravest, order
from bench.report.blocks import Block, Facts, Heading, LeadText, Text, Tile, Tiles, Verdicts, nonempty, plain
from bench.report.compare import gap
from bench.report.facts import ends, facts
from bench.report.frontier import picture, points_of
from bench.report.page import NONE, Page, listed, more, percent
from bench.results.cells import Workload

FASTEST = 10.0
"""Of the ideal: an interval that ends beyond it says so."""
WORKLOADS = 4
"""As many are answered on page one, each with a picture."""
ROWS, WORDS, EQUALS = 8, 12, 2
"""Of the table; of a reason; ways that are named beside the best one."""
TITLE = "Benchmark report"
Namer = Callable[[Option], str]
KINDS: tuple[Kind, ...] = ("use", "one", "open", "nothing")
"""What can be done comes first."""


def section(page: Page) -> list[Block]:
    """Return title, answer, figures, picture and table of page one."""
    answers = [(workload, answer(page, cells)) for workload, cells in page.workloads.items()]
    answers.sort(key=lambda pair: KINDS.index(pair[1].kind))
    shown = answers[:WORKLOADS]
    compared = any(each.chosen for _, each in answers)
    return nonempty(
        Heading(TITLE, 1),
        *[LeadText(sentence(page, workload, each)) for workload, each in shown],
        more(len(answers) - WORKLOADS, "workload", "see *Quality against one device* and *Time to target*"),
        Tiles(tiles(page, answers) if compared else alone.tiles(page)),
        _beside(page, shown),
        _table(page, [each for _, each in answers]) if compared else None,
        Text(_scope(page, [workload for workload, _ in shown])),
    )


def _beside(page: Page, shown: Sequence[tuple[Workload, Answer]]) -> Block | None:
    drawn = picture(page, [(workload, each) for workload, each in shown if points_of(each)])
    known = facts(page, shown)
    return Facts(known, drawn) if known else drawn


def sentence(page: Page, workload: Workload, each: Answer) -> str:
    """Return the answer for one workload, in one or two sentences."""
    model, best = f"`{plain(workload.model)}`", each.chosen
    if len([other for other in page.workloads if other.model == workload.model]) > 1:
        model = plain(page.title(workload))
    if best is None:
        return f"**Nothing to compare for {model}**: {each.reason}."
    name, target = plain(best.cell.label), _target(workload, best)
    if each.kind == "use":
        text = f"**Train {model} with {name}**: it reaches the target ({target}) in {_of_one(best.time)}"
        text += f", {_as_good(best)}."
        if each.equals:
            others = [plain(option.cell.label) for option in each.equals]
            rest = [plural(len(others) - EQUALS, "other")] if len(others) > EQUALS else []
            text += f" Not told apart from it: {listed([*others[:EQUALS], *rest])}."
        return text
    way = f"to the target ({target})"
    nearest = f"the nearest, {name}, takes {_of_one(best.time)} {way}" if best.time else f"the nearest is {name}"
    if each.kind == "one":
        return f"**Stay with one device for {model}**: even {nearest.removeprefix('the nearest, ')}."
    seeds = f"; {plural(each.seeds, 'more seed')} of it can decide" if each.seeds else ""
    return f"**No recommendation yet for {model}**: {each.reason}; {nearest}{seeds}."


def _of_one(time: Interval | None) -> str:
    return "no known time" if time is None else f"{time.value:.2f} of one device's time{_between(time)}"


def _target(workload: Workload, best: Option) -> str:
    value = best.cell.about.target.value
    return plain(workload.metric or "metric") + ("" if value is None else f" {value:g}")


def _between(ratio: Interval) -> str:
    return "" if ratio.low is None or ratio.high is None else f" (95 %: {ends(ratio.low, ratio.high)})"


def _as_good(option: Option) -> str:
    quality = option.quality
    if quality is None or quality.margin is None:
        return "its quality without a verdict"
    metric = option.cell.about.final.eval_metric
    margin = gap(-quality.margin, metric).lstrip("+")
    value = f"{plain(metric)} {gap(-quality.difference.value, metric)}"
    return f"as good as one device ({value}, margin {margin}, {plural(quality.difference.n, 'seed')})"


def tiles(page: Page, answers: Sequence[tuple[Workload, Answer]]) -> tuple[Tile, ...]:
    """Return verdicts, time to the target, efficiency and the worst cell: of the first workload with a recommendation."""
    first = [(each.kind != "use", each.chosen.lasts, each.chosen) for _, each in answers if each.chosen is not None]
    best = min(first, key=lambda entry: entry[:2])[2] if first else None
    worst = _worst([option for _, each in answers for option in each.options])
    name = _namer(page)
    mine: Namer = name if len(page.workloads) > 1 else lambda option: ""  # the sentence names it
    known = (
        _verdicts(page),
        _time(best, mine),
        _efficiency(best, mine),
        None if worst is None else _lowest(worst, name),
    )
    return tuple(tile for tile in known if tile is not None)


def _verdicts(page: Page) -> Tile:
    names = {verdict.cell for verdict in page.verdicts}
    if not names:
        return Tile("cells that pass", NONE, "no verdicts: no baseline was given")
    bad = gravest(page.verdicts)
    counts = Counter(verdict.name for verdict in bad.values())
    note = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none is worse than one device"
    return Tile("cells that pass all checks", f"{len(names - bad.keys())} of {len(names)}", note)


def _time(best: Option | None, name: Namer) -> Tile | None:
    if best is None:
        return None
    value = NONE if best.time is None else f"{best.time.value:.2f}"
    note = "not reached by every seed" if best.time is None else _between(best.time).strip(" ()")
    return Tile("time to target / one device's", value, _noted(name(best), note or "one seed"))


def _efficiency(best: Option | None, name: Namer) -> Tile | None:
    if best is None or best.speed is None:
        return None
    ideal, speed = best.rival.ideal, best.speed
    known = speed.low is not None and speed.high is not None
    high = min((speed.high or 0) / ideal, FASTEST)
    note = (
        f"95 %: {percent((speed.low or 0) / ideal)} to {'over ' * (high == FASTEST)}{percent(high)}"
        if known
        else "one seed"
    )
    return Tile(f"samples/s, of {ideal:g} devices' ideal", percent(speed.value / ideal), _noted(name(best), note))


def _noted(name: str, note: str) -> str:
    return f"{name}; {note}" if name else note


def _worst(options: Sequence[Option]) -> Option | None:
    """Return the cell that is furthest below its baseline, in its margins where it has one."""
    known = [(option.quality, option) for option in options if option.quality is not None]
    if not known:
        return None
    return min(known, key=lambda pair: pair[0].difference.value / (pair[0].margin or 1.0))[1]


def _lowest(option: Option, namer: Namer) -> Tile:
    assert option.quality is not None
    difference, metric = option.quality.difference, option.cell.about.final.eval_metric
    name = namer(option)
    if difference.low is None or difference.high is None:
        return Tile(
            f"lowest {plain(metric)} against one device", gap(-difference.value, metric), f"{name}; n={difference.n}"
        )
    between = f"{gap(-difference.low, metric)} to {gap(-difference.high, metric)}"
    return Tile(
        f"lowest {plain(metric)} against one device", gap(-difference.value, metric), f"{name}; 95 %: {between}"
    )


def _table(page: Page, answers: Sequence[Answer]) -> list[Block]:
    options = _together(answers)
    if not options:
        return []
    rows = [row(page, option) for option in options[:ROWS]]
    if not any(each["why"] for each in rows):
        rows = [{name: cell for name, cell in each.items() if name != "why"} for each in rows]
    shown = Verdicts(tuple(rows), left=3 if "why" in rows[0] else 2)
    return nonempty(shown, more(len(options) - ROWS, "cell", "*Every cell* has them all"))


def _namer(page: Page) -> Namer:
    """Return how cells are named: with their model where there are several workloads."""
    several = len(page.workloads) > 1
    return lambda option: plain(option.cell.name if several else option.cell.label)


def every_option(page: Page) -> list[Option]:
    """Return every cell but solo of all workloads: what did not pass first, then by time to the target."""
    return _together([answer(page, cells) for cells in page.workloads.values()])


def _together(answers: Sequence[Answer]) -> list[Option]:
    return sorted((option for each in answers for option in each.options), key=order)


def row(page: Page, option: Option) -> dict[str, str]:
    """Return what the reader decides by, of one cell."""
    quality, metric = option.quality, option.cell.about.final.eval_metric
    return {
        "cell": _namer(page)(option),
        "verdict": (option.failing.name if option.failing else "PASS") if page.verdicts else NONE,
        "why": plain(reason(option)),
        "time to target": _ratio(option.time),
        "samples/s": _ratio(option.speed),
        "of ideal": NONE if option.speed is None else percent(option.speed.value / option.rival.ideal),
        "quality": NONE if quality is None else gap(-quality.difference.value, metric),
        "seeds": str(len(option.cell.one_each)),
    }


def _ratio(ratio: Interval | None) -> str:
    return NONE if ratio is None else f"{ratio.value:.2f} ×"


def reason(option: Option) -> str:
    """Return why it did not pass or is not recommended, in a dozen words."""
    quality = option.quality
    if option.failing is not None and option.failing.check == "quality" and quality is not None and quality.margin:
        metric = option.cell.about.final.eval_metric
        kind = "proved worse" if option.failing.name == "FAIL" else "may be worse"
        text = f"quality: {kind} by more than the margin of {gap(-quality.margin, metric).lstrip('+')}"
    elif option.failing is not None:
        text = f"{option.failing.check}: {option.failing.why}"
    elif option.time is None:
        text = f"target reached by {option.reach.reached} of {option.reach.n} seeds"
    else:
        text = ", ".join(option.limits)
    words = text.split()
    return " ".join(words[:WORDS]) + (" …" if len(words) > WORDS else "")


def _scope(page: Page, shown: Sequence[Workload]) -> str:
    counts = Counter(metrics.status for metrics in page.runs)
    ends = ", ".join(f"**{count} {status}**" for status, count in sorted(counts.items(), key=lambda c: c[0] != "ok"))
    text = f"{plural(len(page.runs), 'run')} in {plural(len(page.cells), 'cell')}: {ends or 'none readable'}."
    if page.problems:
        text += f" **{plural(len(page.problems), 'folder')} could not be read.**"
    if not shown:
        return text
    on = listed(dict.fromkeys(f"{plain(workload.model)} on {plain(workload.data)}" for workload in shown))
    return (
        f"{text} Trained: {on}. ×2 in a name: two ranks; 0.50 × in a column: half of one device's. *Quality* is the final "
        "result less one device's baseline, + is better; *of ideal* is the speed, of that of all devices together."
    )
