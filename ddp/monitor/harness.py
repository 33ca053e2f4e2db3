"""The seam between what is recorded here and who shows it: the names of the harness's modules, and what is asked of them.

Must not know what a page or a picture is made of. The engine works without the harness.
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
    """A page that is served by another process."""

    address: str

    def close(self) -> None:
        """End it."""
        ...


class PageMaker(Protocol):
    """Who shows a folder of runs."""

    def describe(self, folder: Path, config: Json, graph: Json | None) -> None:
        """Write what a run folder says beside its records. Raises OSError."""
        ...

    def conclude(
        self, folder: Path, config: Json, records: Sequence[bytes], launched: float, end: tuple[float, str, str | None]
    ) -> None:
        """Write the result of a run that is over: `end` is when, its status and what ended it. Raises OSError."""
        ...

    def serve(self, root: Path, port: int) -> ServedPage:
        """Serve the runs below `root`, and remove `root` once this process is gone. Raises OSError."""
        ...

    def export(self, root: Path, out: Path) -> None:
        """Write the page over the runs below `root` to a file. Raises OSError."""
        ...


def save_timeline(form: str, path: Path, config: Json, launched: float, lines: Sequence[bytes]) -> None:
    """Write records as `json`, `csv` or `html`. Raises OSError; ValueError without the harness."""
    _module(_TIMELINE).save(form, path, config, launched, lines)


def page_maker() -> PageMaker:
    """Return who shows runs. Raises ValueError without the harness."""
    return cast(PageMaker, _module(_PAGE))


def picture(graph: Json) -> str:
    """Return the layers of a model as SVG. Raises ValueError without the harness."""
    return str(_module(_PICTURE).svg(graph))


def layers(model: Any, call: Callable[[], Any]) -> Json:
    """Return the layers of `model` in the order in which `call` uses them, and who feeds whom. Raises what `call` raises;
    ValueError without the harness."""
    graph: Json = _module(_LAYERS).follow_call(model, call)
    return graph


def harness_module(name: str, purpose: str, remedy: str = "") -> Any:
    """Return a module of the harness. Raise ValueError where there is none, or another package has its name; the line says
    what needs it, and ends with the `remedy`."""
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
