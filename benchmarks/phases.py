"""Draws the diagram of a round's phases from the coordinator's transition table.

python -m benchmarks.phases            # print it
python -m benchmarks.phases --write    # put it into the document
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from benchmarks import frame
from ddp.core.rounds.phases import TABLE, Input
from ddp.core.state.round_state import Phase

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- phases of a round: python -m benchmarks.phases --write -->", "<!-- end of the phases -->"


def diagram() -> str:
    """Return the table as a Mermaid state diagram: an arrow for each pair of phases, with what comes. What is done is in the
    table: with it the arrows could not be read."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> idle"]
    lines += [f"    state {phase.value!r} as {_id(phase)}".replace("'", '"') for phase in Phase if " " in phase]
    for phase, row in TABLE.items():
        arrows: dict[Phase, list[str]] = defaultdict(list)
        for cause, (following, _) in row.items():
            arrows[following].append(_shown(cause))
        lines += [f"    {_id(phase)} --> {_id(to)}: {'<br>'.join(labels)}" for to, labels in arrows.items()]
    return "\n".join([*lines, "```"])


def _id(phase: Phase) -> str:
    return phase.replace(" ", "_")


def _shown(cause: Input) -> str:
    return f"[{cause}]" if cause[0].islower() else cause


def written(text: str) -> str:
    """Return a document with the diagram between its marks. Raises ValueError if it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT} has no place for the diagram: {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{diagram()}\n\n{END}{after}"


def main() -> None:
    """Print the diagram, or write it."""
    if frame.options(__doc__, "put it into the document").parse_args().write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(diagram())


if __name__ == "__main__":
    main()
