"""Page one: the recommended way of training for each workload, how certain the recommendation is, and everything that
did not pass. All other sections are folded below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bench.base.number_format import plural
from bench.report.blocks import Beside, Block, Facts, Heading, LeadText, SmallText, Tiles, Verdicts, nonempty, plain
from bench.report.glossary import paragraph
from bench.report.measures.compare import in_points, shares_gpu
from bench.report.measures.intervals import Interval
from bench.report.measures.timing import Timing
from bench.report.page import NONE, Page, listed, more, number
from bench.report.page_one import single_cell
from bench.report.page_one.answer import Answer, Kind, Option, answer
from bench.report.page_one.frontier import numbered, picture
from bench.report.page_one.overall import Portion
from bench.report.page_one.overall import tiles as overall
from bench.report.page_one.questions import facts, setup
from bench.report.page_one.scaling_advice import taken
from bench.report.page_one.scaling_series import ScalingSeries, answered, scaling
from bench.report.page_one.scaling_words import name_of
from bench.report.page_one.sentence import name_of as name
from bench.report.page_one.sentence import sentence
from bench.report.page_one.tiles import tiles
from bench.report.page_one.words import (
    RECOMMENDED,
    arrival,
    badges,
    compared,
    difference,
    reason,
    share,
    state,
    times,
)
from bench.report.sections.scaled import blocks as scaling_blocks
from bench.report.sections.scaled import studied
from bench.results.cells import Cell, Workload

WORKLOADS = 4
"""Most workloads that page one answers in full, each with a picture. The others are counted in one line."""
ROWS, FEWER = 10, 8
"""Most rows of the table of a workload: of a single one, and of one of several. If only one row would be left out, it
is shown too."""
TITLE = "Benchmark report"
KINDS: tuple[Kind, ...] = ("use", "one", "open", "nothing")
"""Kinds of answers in the order of page one: those that the reader can act on come first."""
INCHES, AMONG = (4.7, 2.9), (4.9, 2.05)
"""Width and height of the picture, in inches: of a single workload, and of one of several."""
SOONER = "sooner?"
"""Heading of the column that says whether the target is reached sooner than on one device."""
SPEED = "samples/s"
"""Heading of the column that replaces `RATIOS` if no run on one device is there to compare with."""
TEXTS, RATIOS = ("quality", "why", SOONER), ("time / one device's", "efficiency")
"""Columns of text after the first column; and columns of ratios to one device."""
OPTIONAL = ("why", SOONER, *RATIOS)
"""Columns that are left out if all their cells are empty."""
ALLOWED = "2.5 standard deviations of *recorded* runs, or the model's minimum"
"""The allowed loss of quality as printed in the legend."""
EVERY = "Every way of training"
"""Heading of the section that has all rows."""


def section(page: Page) -> list[Block]:
    """Return page one: its title, the answers, key figures, pictures and tables."""
    series = scaling(page)
    inside = answered(page, series)
    answers = [(w, cells, answer(page, cells)) for w, cells in page.workloads.items() if w not in inside]
    answers.sort(key=lambda each: KINDS.index(each[2].kind))
    shown = answers[:WORKLOADS]  # of the others, their figures alone
    several = len(answers) + len(series) > 1
    compared = bool(series) or any(each.options for *_, each in answers)
    blocks = [_block(page, number, several, *each) for number, each in enumerate(shown)]
    parts = [Portion(name_of(each), each.options, taken(page, each)) for each in studied(page, series)]
    parts += [
        Portion(name(page, w).replace("`", ""), each.options, each.chosen if each.kind == "use" else None)
        for w, _, each in answers
    ]
    return nonempty(
        Heading(TITLE, 1),
        SmallText(_scope(page)),
        Tiles(overall(parts), slim=True),
        scaling_blocks(page, series),
        *blocks,
        more(len(answers) - WORKLOADS, "workload", "see *Quality against one device* and *Time to target*"),
        None if compared else Tiles(single_cell.tiles(page.cells)),
        SmallText(_legend(page, series, [each for *_, each in shown], several) if compared else ""),
    )


def _block(page: Page, number: int, several: bool, workload: Workload, cells: list[Cell], each: Answer) -> list[Block]:
    """Return the blocks of one workload. `number`: its place on the page, counted from 0. `several`: whether the page
    answers several workloads, which makes the blocks shorter."""
    lead, given = LeadText(sentence(page, workload, cells, each, several)), setup(cells, each)
    if not each.options:
        return nonempty(lead, SmallText(given))
    name = "answer" if number == 0 else f"answer-{number + 1}"
    drawn = picture(page, workload, each, name, AMONG if several else INCHES)
    chosen = each.chosen if each.kind == "use" else None
    uneven = len({len(cell.one_each) for cell in cells}) > 1
    first = rows_of(each, several)
    numbers = [each.options.index(option) + 1 for option in first] if numbered(each) else []
    rows = table(page, first, seeds=uneven, chosen=chosen, numbers=numbers)
    beside = [rows] if len(each.options) > 1 or each.why != "no solo" else []  # figures say all of one alone
    if rest := more(len(each.options) - len(first), "way", f"see *{EVERY}*"):
        given = f"{rest.text} {given}"
    known = facts(cells, each, brief=several)
    shown: list[Block] = [SmallText(given), *beside] if drawn is None else [Beside(drawn, rows, given)]
    figures = single_cell.tiles(cells) if each.why == "no solo" else tiles(each)
    return nonempty(lead, Tiles(() if several else figures), shown, Facts(known, lines=several))


def rows_of(each: Answer, several: bool) -> Sequence[Option]:
    """Return the ways of training that get a row: the first of the answer's options, as many as fit, and the one that
    the answer names."""
    most = FEWER if several else ROWS
    if len(each.options) <= most + 1:
        return each.options
    first, chosen = each.options[:most], each.chosen
    return first if chosen is None or chosen in first else (*first[:-1], chosen)


def table(
    page: Page,
    options: Sequence[Option],
    named: bool = False,
    seeds: bool = True,
    chosen: Option | None = None,
    numbers: Sequence[int] = (),
) -> Verdicts:
    """Return the table of ways of training, a row each, without columns that are empty in all rows. `named`: precede
    each way with its model. `seeds`: show the number of seeds. `chosen`: the option whose row is highlighted.
    `numbers`: the number of each row, which marks its point in the picture."""
    sizes = {option.cell.about.world_size for option in options}
    modes = {option.cell.about.mode for option in options}
    size = sizes.pop() if len(sizes) == 1 and len(modes) == len(options) and not named else None
    rows = [row(page, option, options, named, size) for option in options]
    silent = {name for name in OPTIONAL if all(each[name] in ("", NONE) for each in rows)}
    silent |= {name for name, shown in {"seeds": seeds, SPEED: RATIOS[1] in silent}.items() if not shown}
    rows = [{name: cell for name, cell in each.items() if name not in silent} for each in rows]
    left = sum(name in rows[0] for name in TEXTS) + 1
    marked = tuple(place for place, option in enumerate(options) if option is chosen)
    for place, each in enumerate(rows):
        first, number = next(iter(each)), f"{numbers[place]} " if numbers else ""
        each[first] = f"**{number}{RECOMMENDED}{each[first]}**" if place in marked else f"{number}{each[first]}"
    return Verdicts(tuple(rows), left=left, badges=badges(options), marked=marked)


def row(
    page: Page, option: Option, among: Sequence[Option], named: bool = False, size: int | None = None
) -> dict[str, str]:
    """Return one row of the table of the options `among`: column -> text. `size`: the number of devices if it is the
    same for all rows; then the heading has it instead of the rows."""
    return {
        "way of training" if size is None else f"on {plural(size, 'device')}": _called(option, named, size is not None),
        "quality": state(option, bool(page.verdicts)),
        "why": plain(reason(option)),
        SOONER: arrival(option),
        RATIOS[0]: times(option),
        RATIOS[1]: share(option),
        SPEED: number(Timing.of(option.cell).speed.mean),
        f"{plain(option.cell.about.final.eval_metric)} − {compared(among)}": difference(option),
        "seeds": str(len(option.cell.one_each)),
    }


def _called(option: Option, named: bool, short: bool) -> str:
    return plain(option.cell.name if named else option.cell.about.mode if short else option.cell.label)


def _scope(page: Page) -> str:
    counts = Counter(metrics.status for metrics in page.runs)
    ends = ", ".join(f"**{count} {status}**" for status, count in sorted(counts.items(), key=lambda c: c[0] != "ok"))
    ways = len({cell.label for cell in page.cells if not cell.is_solo})
    trained = [f"{plural(ways, 'way')} of training"] * (ways > 0)
    trained += ["one device"] * any(cell.is_solo for cell in page.cells)
    of = f" of {' and of '.join(trained)}" if trained else ""
    text = f"{plural(len(page.runs), 'run')}{of}: {ends or 'none readable'}."
    if page.problems:
        text += f" **{plural(len(page.problems), 'folder')} could not be read.**"
    if not page.workloads:
        return text
    models: dict[str, dict[str, None]] = {}
    for workload in page.workloads:
        models.setdefault(plain(workload.data), {})[plain(workload.model)] = None
    on = ", ".join(f"{listed(some)} on {data}" for data, some in models.items())
    return f"{text} {on}. {_devices(page)}".strip()


def _devices(page: Page) -> str:
    """Return the sentence that explains what a device is in these runs; empty if no run has several ranks in real
    time."""
    several = [cell for cell in page.cells if cell.about.world_size > 1 and cell.about.source is None]
    runs = [run.metrics for cell in several for run in cell.runs]
    cores = {cores for cell in several if (cores := page.cores(cell)) is not None}
    if {device for m in runs for device in m.devices} == {"cpu"} and len(cores) == 1:
        made = {plain(cpu) for m in runs if (cpu := m.env.get("cpu"))}
        of = f" of {made.pop()}" if len(made) == 1 else ""
        no = "" if any(device != "cpu" for m in page.runs for device in m.devices) else "; no GPU"
        return f"×2: two devices (processes: *ranks*) on {plural(cores.pop(), 'core')}{of}{no}."
    if any(map(shares_gpu, runs)):
        which = " that" if all(map(shares_gpu, runs)) else "; some"
        return f"×2: two processes (*ranks*){which} share a GPU."
    return "×2: two devices, each with a process of its own (a *rank*)." if any(m.devices for m in runs) else ""


def _chance(efficiency: Interval) -> bool:
    """Return whether an efficiency is above 1 although its interval includes 1."""
    return efficiency.value > 1 and efficiency.low is not None and efficiency.low <= 1


def _legend(page: Page, series: Sequence[ScalingSeries], answers: Sequence[Answer], several: bool) -> str:
    """Return the legend of the columns, marks and names that the page really shows."""
    options = [option for each in answers for option in each.options]
    against = any(option.rival.solo is not None for option in options)
    passed = bool(series) or any(each.passed for each in options)
    arrow = f"*{RECOMMENDED.strip()}*: recommended"
    columns: Mapping[str, bool] = {
        f"{arrow}, the quickest of those whose quality is OK; *×*: over one device's": bool(series),
        f"{arrow}, the plainest of equals": any(each.kind == "use" for each in answers),
        f"*quality OK*: at 95 % worse by at most {ALLOWED}": passed,
        "*sooner?*: to the target": against,
        "*efficiency*: speed / that of as many devices alone": against or bool(series),
        "over 100 %: chance": any(option.efficiency is not None and _chance(option.efficiency) for option in options),
        "*1 device*: one rank, 1 × but for chance": bool(series),
        "*not comparable*, *not judged*: no *baseline* (recorded runs) has this batch or task": any(
            v.name in ("REFUSED", "NO_BASELINE") for v in page.verdicts
        ),
        "*red*: what a check found; *Verdicts* says more": any(v.name == "FAIL" for v in page.verdicts),
        "*recorded*: runs of the baseline": not passed
        and any(compared(rows_of(each, several)) == "recorded" for each in answers),
        "*−*: median difference": any(compared(rows_of(each, several)) == "recorded" for each in answers),
        "*pt*: points of %": any(in_points(cell) for cell in page.cells),
        "*unclear*: the interval's ends differ by a factor of 4 or more": any(
            ratio is not None and ratio.wide for option in options for ratio in (option.time, option.efficiency)
        ),
    }
    shown = [text for text, there in columns.items() if there]
    cells = (
        [option.cell for each in answers for option in rows_of(each, several)] if answers and not series else page.cells
    )
    modes = list(dict.fromkeys(cell.about.mode for cell in cells))
    return " ".join(filter(None, [f"{'; '.join(shown)}." if shown else "", paragraph(modes)]))
