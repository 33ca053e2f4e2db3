"""The heat map: results of the matrix as one self-contained HTML page, readable from 400 pixels width on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from bench.faults.meaning import KINDS, PHASES, RANKS, WORLDS, FaultCell, FaultOutcome, cells, documented, meaningless
from bench.faults.modes import MODES
from bench.faults.outcome import FaultResult
from bench.faults.table import Group, groups

LETTERS = {FaultOutcome.UNHURT: "u", FaultOutcome.LOST: "w", FaultOutcome.ENDED: "e", FaultOutcome.RESUMED: "r"}
STYLE = """
:root{color-scheme:light dark;--n:#8883;--u:#2a9d5c;--w:#3273c4;--r:#8e5bd0;--e:#b9770e;--x:#e00030}
body{font:14px/1.4 system-ui,sans-serif;margin:1rem auto;max-width:1400px;padding:0 .5rem}
h1{font-size:1.3rem}h2{font-size:1.1rem;margin:1.5rem 0 .3rem}h3{font-size:.95rem;margin:.8rem 0 .2rem}
.maps{display:flex;flex-wrap:wrap;gap:1rem}.map{flex:0 1 440px;min-width:0;overflow-x:auto}
table{border-collapse:collapse;font-size:10px;font-variant-numeric:tabular-nums}
th{font-weight:500;text-align:left;padding:1px 2px;vertical-align:middle;max-width:70px;overflow-wrap:anywhere}
thead th{vertical-align:bottom;writing-mode:vertical-rl;transform:rotate(180deg);max-width:none}
td{padding:1px}td div{display:grid;grid-template-columns:1fr 1fr;gap:1px;width:39px}
b,i{display:block;font:9px/12px system-ui,sans-serif;text-align:center;height:12px;overflow:hidden;color:#fff}
i{background:var(--n);color:#888;font-style:normal}.u{background:var(--u)}.w{background:var(--w)}.r{background:var(--r)}.e{background:var(--e)}
.x{background:var(--x);outline:2px solid var(--x)}
.h0{filter:brightness(1.15)}.h1{filter:brightness(.95)}.h2{filter:brightness(.78)}.h3{filter:brightness(.6)}
.key b,.key i{display:inline-block;width:39px;vertical-align:middle}.key{font-size:12px}
"""


def page(results: Sequence[FaultResult]) -> str:
    """Return the page."""
    by_group = groups(results)
    wrong = sum(not result.good for result in results)
    head = f"{len(results):,} cells were played: " + (f"all but {wrong}" if wrong else "all") + " are as documented."
    body = [f"<h1>Faults: kind, phase and ranks</h1><p>{head}</p>{_KEY}"]
    for world, size in dict.fromkeys((world, size) for world, size, _ in by_group):
        body.append(f"<h2>{escape(world)}, {size} ranks</h2><div class=maps>")
        body += [_map(group, by_group[group]) for group in by_group if group[:2] == (world, size)]
        body.append("</div>")
    body.append(_reasons())
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    return f'<!doctype html><html lang="en"><head>{meta}<title>Faults</title><style>{STYLE}</style></head><body>' + (
        "\n".join(body) + "</body></html>\n"
    )


_KEY = (
    "<p class=key>In a cell: first and last rank, two, all. The figure: seconds until every rank that was hit works again, "
    "or, without one, until others go on; darker is longer. <b class=u>3.1</b> no rank is lost &ensp;<b class=w>3.1</b> "
    "ranks are lost, others go on &ensp;<b class=r>3.1</b> gone on with from a checkpoint &ensp;<b class=e>end</b> the run "
    "ends, as documented &ensp;<b class=x>!</b> not as documented &ensp;<i>?</i> not played &ensp;<i></i> no meaning</p>"
)


def _map(group: Group, results: Sequence[FaultResult]) -> str:
    world, _, mode = group
    played = {(result.cell.kind, result.cell.phase, result.cell.ranks): result for result in results}
    head = "".join(f"<th>{phase}" for phase in PHASES)
    rows = []
    for kind in KINDS:
        row = [[FaultCell(kind, phase, ranks, mode) for ranks in RANKS] for phase in PHASES]
        each = (_cell([(cell, played.get((kind, cell.phase, cell.ranks))) for cell in four], world) for four in row)
        rows.append(f"<tr><th>{kind}{''.join(each)}")
    return f"<div class=map><h3>{escape(mode)}</h3><table><thead><tr><th>{head}</thead>{''.join(rows)}</table></div>"


def _cell(results: Sequence[tuple[FaultCell, FaultResult | None]], world: str) -> str:
    return f"<td><div>{''.join(_block(cell, result, world) for cell, result in results)}</div>"


def _block(cell: FaultCell, result: FaultResult | None, world: str) -> str:
    if result is None:
        return "<i></i>" if meaningless(cell, world) else "<i>?</i>"
    if not result.good or result.outcome is None:
        return f'<b class=x title="{escape(result.verdict)}">!</b>'
    if result.outcome is FaultOutcome.ENDED:
        return "<b class=e>end</b>"
    seconds = result.full_s if result.full_s is not None else result.on_s
    if seconds is None:
        return f"<b class={LETTERS[result.outcome]}></b>"
    return f'<b class="{LETTERS[result.outcome]} h{_heat(seconds)}">{_short(seconds)}</b>'


def _heat(seconds: float) -> int:
    """Return the darkness of a time, 0 to 3: below 1, 5 and 20 seconds, and above."""
    return sum(seconds >= edge for edge in (1, 5, 20))


def _short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}" if seconds >= 0.1 else f"{1e3 * seconds:.0f}ms"


def _reasons() -> str:
    """Return the lists of why cells have no meaning, and of the documented outcomes of the others."""
    reasons: dict[str, list[FaultCell]] = {}
    for world in WORLDS:
        for cell in cells(MODES):
            if why := meaningless(cell, world):
                reasons.setdefault(why, []).append(cell)
    none = "".join(f"<li>{escape(why)}: {escape(_of(of))}" for why, of in reasons.items())
    allowed = []
    for mode in ("nccl_cadence", "zero1", "graph_sync"):
        for kind in KINDS:
            for ranks in ("first", "all"):
                cell = FaultCell(kind, "checkpoint" if kind in _SAVING else "step", ranks, mode)
                if not all(meaningless(cell, world) for world in WORLDS):
                    words = " or ".join(sorted(each.value for each in documented(cell)))
                    allowed.append(f"<li>{mode}, {escape(kind)}, {ranks}: {escape(words)}")
    text = "in a step or a checkpoint; before a rank is ready, what costs it ends the run"
    return f"<h2>No meaning</h2><ul>{none}</ul><h2>Documented</h2><p>{text}</p><ul>{''.join(allowed)}</ul>"


_SAVING = ("disk full", "corrupt checkpoint")


def _of(of: Sequence[FaultCell]) -> str:
    """Return a text that names the modes, kinds, phases and ranks of the cells."""
    columns = (
        (cell.mode for cell in of),
        (cell.kind for cell in of),
        (cell.phase for cell in of),
        (cell.ranks for cell in of),
    )
    return "; ".join(_names(list(dict.fromkeys(names)), every) for names, every in zip(columns, _EVERY, strict=True))


_Named = tuple[str, Collection[str]]
_EVERY: tuple[_Named, ...] = (("modes", MODES), ("kinds", KINDS), ("phases", PHASES), ("ranks", RANKS))


def _names(names: Sequence[str], every: _Named) -> str:
    what, known = every
    return f"all {what}" if len(names) == len(known) else ", ".join(names)
