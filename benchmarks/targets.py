"""Lists the targets that are missed. Each figure is read from the page that has it; a target that is met is left out.

python -m benchmarks.targets            # print the list
python -m benchmarks.targets --write    # put it into reports/README.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks import documents, frame

MARKS = "missed"
PREDICTED = "predictions, {}: median error 5 %, worst 15 %, 90 % within the interval"
ERRORS = (
    r"median error (\S+) % \(at most (\S+)\), worst (\S+) % \(at most (\S+)\), (\S+) % within .*?\(at least (\S+)\)"
)


@dataclass(frozen=True)
class Target:
    """A target and the figures that tell whether it is met."""

    words: str
    page: str
    """The link of its page, as it stands in reports/README.md."""
    pattern: str
    """Finds the figures on the page; a space stands for any white space. May match several times, such as once a row."""
    reached: str
    """Format of the groups of a match."""
    missed: Callable[..., bool]
    """Whether a match misses the target: a function of its groups."""


def _inaccurate(error: str, most: str, worst: str, most_worst: str, within: str, least: str) -> bool:
    return float(error) > float(most) or float(worst) > float(most_worst) or float(within) < float(least)


def _apart(real: str, virtual: str) -> float:
    return round(abs(float(real) - float(virtual)), 1)  # as exact as the figures are


TARGETS = (
    Target(
        PREDICTED.format("steps of a given time"),
        "[given time](prediction/truth.md)",
        ERRORS,
        "median {0} %, worst {2} %, {4} % within",
        _inaccurate,
    ),
    Target(
        PREDICTED.format("steps as they come"),
        "[as they come](prediction/own-steps.md)",
        ERRORS,
        "median {0} %, worst {2} %, {4} % within",
        _inaccurate,
    ),
    Target(
        "an emulated link is within 5 % of what is set",
        "[links](scale/links.md)",
        r"^\| (\w+) \| \d+ \| ([^|]+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) % \|$",
        "{0}, `{1}`, {2} bytes: {4} ms, set {3} ms",
        lambda *row: abs(float(row[-1])) > 5,
    ),
    Target(
        "1,000 virtual ranks in 300 s of wall time",
        "[many ranks](virtual/quality.md)",
        r"^\| (\w+) \| 1,000 \|.*\| (\S+) \|$",
        "`{0}`: {1} s",
        lambda _, seconds: float(seconds) > 300,
    ),
    Target(
        "no rank of a clean run is named as slow",
        "[recovery](../docs/explanation/recovery.md#a-rank-that-becomes-slow)",
        r"In (\d+) clean runs (\d+) were named falsely",
        "{1} in {0} runs",
        lambda _, named: int(named) > 0,
    ),
    Target(
        "99 % of slow phases are named right within three windows",
        "[recovery](../docs/explanation/recovery.md#a-rank-that-becomes-slow)",
        r"(\d+) of (\d+) phases of \S+ to \S+ times are named right",
        "{0} of {1}",
        lambda right, phases: int(right) < 0.99 * int(phases),
    ),
    Target(
        "from a kill to full strength: median 2 s, worst 5 s",
        "[return](faults/rejoin.md)",
        r"kills: median (\S+) s \(at most (\d+)\), worst (\S+) s \(at most (\d+)\)",
        "median {0} s, worst {2} s",
        lambda middle, most, worst, most_worst: float(middle) > float(most) or float(worst) > float(most_worst),
    ),
    Target(
        "goodput and ETTR of processes and of virtual time are within 3 points",
        "[real against virtual](goodput/real.md)",
        r"^\| (\w+) \| ([^|]+) \| (\S+) % \| (\S+) % \| (\S+) % \| (\S+) % \| [^|]+ \| \d+ \|$",
        "`{0}`, `{1}`: goodput {2} and {3} %, ETTR {4} and {5} %",
        lambda mode, faults, *shares: _apart(*shares[:2]) > 3 or _apart(*shares[2:]) > 3,
    ),
    Target(
        "published utilisation of DiLoCo is predicted within 10 %",
        "[DiLoCo](prediction/diloco.md)",
        r"Held out: at most (\S+) % off\. A bandwidth left out: at most (\S+) % off",
        "held out {0} %, a bandwidth left out {1} %",
        lambda *off: max(map(float, off)) > 10,
    ),
    Target(
        "figures of published traces are within 1 % of their authors'",
        "[stragglers](prediction/stragglers.md)",
        r"^\| (\w+) \| ([^|]+) \| (\S+) \| (\S+) \| (\S+) % \|$",
        "{0}, {1}: {2}, theirs {3}",
        lambda *row: abs(float(row[-1])) > 1,
    ),
    Target(
        "a step takes at most 1.02 of its time with a separate path for each mode",
        "[gradients](../docs/explanation/gradients.md#measured)",
        r"\*\*`(\w+)`\*\* misses it with (\S+) and (\S+):",
        "`{0}`: {1} and {2}",
        lambda _, *ratios: max(map(float, ratios)) > 1.02,
    ),
    Target(
        "waiting and communicating: at most 0.10 of a step",
        "[gradients](../docs/explanation/gradients.md#measured)",
        r"\*\*Waiting and communicating\*\* take (\S+) of a step of (`\w+` on \w+)",
        "{0} for {1}",
        lambda share, _: float(share) > 0.10,
    ),
    Target(
        "all-reduce 8 times as fast as gloo up to 64 KB, twice above",
        "[speed](../docs/explanation/speed.md#all-reduce-shared-memory-against-gloo)",
        r"^\| (\d+[kM]?) \| (\S+) \| (\S+) \| (\d+) \|$",
        "{2} times under load ({0} bytes)",
        lambda _, quiet, loaded, least: min(float(quiet), float(loaded)) < float(least),
    ),
    Target(
        "every seeded bug is caught",
        "[trust in verdicts](../docs/explanation/validation.md#seeded-bugs)",
        r"(\d+) of (\d+) were caught at first try[^#]*?Not caught now: ([^.]+)\.",
        "{0} of {1} by strangers at first try; not caught now: {2}",
        lambda caught, bugs, _: int(caught) < int(bugs),
    ),
    Target(
        "all cells of the fault matrix beside torchft",
        "[torchft](faults/torchft.md)",
        r"^## (\w+)\n\n(\d+) of (\d+) cells played",
        "{0}: {1} of {2} played",
        lambda _, played, cells: int(played) < int(cells),
    ),
)


def reached(target: Target) -> str:
    """Return the figures that miss a target, empty if it is met. Raises ValueError if its page has no such figures."""
    path = frame.REPORTS / re.sub(r".*\((.*?)(#.*)?\)", r"\1", target.page)
    pattern = re.compile(target.pattern.replace(" ", r"\s+"), re.MULTILINE)
    matches = [tuple(" ".join(part.split()) for part in match.groups()) for match in pattern.finditer(path.read_text())]
    if not matches:
        raise ValueError(f"{path} has no figures of the target: {target.words}")
    return "; ".join(target.reached.format(*match) for match in matches if target.missed(*match))


def rows() -> Iterator[str]:
    """Yield the rows of the list, in Markdown."""
    yield "| target | reached | page |"
    yield "|---|---|---|"
    for target in TARGETS:
        if figures := reached(target):
            yield f"| {target.words} | {figures} | {target.page} |"


def main() -> None:
    """Print the list, or write it."""
    table = "\n".join(rows())
    if frame.options(__doc__, "put it into reports/README.md").parse_args().write:
        documents.put("../reports/README.md", **{MARKS: table})
    else:
        print(table)


if __name__ == "__main__":
    main()
