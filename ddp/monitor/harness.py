"""Imports the modules of the harness that show records, and defines the protocols that they follow.

Must not know what a page or a picture consists of. The engine works without the harness.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

Json = dict[str, Any]
_TIMELINE = "bench.timeline.without_folder"
_PAGE = "bench.dashboard.private_runs"
_PICTURE = "bench.dashboard.architecture"
_LAYERS = "bench.runner.modelgraph"


class ServedPage(Protocol):
    """A page that another process serves."""

    address: str

    def close(self) -> None:
        """Stop serving."""
        ...


class PageMaker(Protocol):
    """Makes pages from a folder of runs."""

    def describe(self, folder: Path, config: Json, graph: Json | None) -> None:
        """Write the files of a run folder other than its records. Raises OSError."""
        ...

    def conclude(
        self, folder: Path, config: Json, records: Sequence[bytes], launched: float, end: tuple[float, str, str | None]
    ) -> None:
        """Write the result of a run that has ended. `launched`: time of its start; `end`: (time, status, error). Raises
        OSError."""
        ...

    def serve(self, root: Path, port: int) -> ServedPage:
        """Serve the runs below `root`, and delete `root` after this process has ended. Raises OSError."""
        ...

    def export(self, root: Path, out: Path) -> None:
        """Write a page of the runs below `root` to the file `out`. Raises OSError."""
        ...


def save_timeline(form: str, path: Path, config: Json, launched: float, lines: Sequence[bytes]) -> None:
    """Write records to a file in the format `json`, `csv` or `html`. Raises OSError; ValueError without the harness."""
    _module(_TIMELINE).save(form, path, config, launched, lines)


def page_maker() -> PageMaker:
    """Return the harness's page maker. Raises ValueError without the harness."""
    return cast(PageMaker, _module(_PAGE))


def picture(graph: Json) -> str:
    """Return the layers of a model as an SVG picture. Raises ValueError without the harness."""
    return str(_module(_PICTURE).svg(graph))


def layers(model: Any, call: Callable[[], Any]) -> Json:
    """Return the layers of `model` in the order in which `call` uses them, and the connections between them. Raises what
    `call` raises; ValueError without the harness."""
    graph: Json = _module(_LAYERS).follow_call(model, call)
    return graph


def harness_module(name: str, purpose: str, remedy: str = "") -> Any:
    """Import the module `name` of the harness. Raise ValueError if the harness is not installed or another package has its
    name; the message begins with `purpose` and ends with `remedy`."""
    spec = importlib.util.find_spec(name.partition(".")[0])
    if spec is None:
        raise ValueError(f"{purpose} the harness, which is not installed here: install elche-bench{remedy}")
    there = Path(spec.origin or ".").resolve().parent
    if there.parent != Path(__file__).resolve().parents[2]:
        raise ValueError(
            f"{purpose} the harness, the package `bench`, and here {there} has that name: rename that folder, or keep the "
            f"script in another one{remedy}"
        )
    return importlib.import_module(name)


def _module(name: str) -> Any:
    return harness_module(name, "timelines and pages need")
