"""Puts a bug into the modules that it breaks, right after each was imported and before anybody took a name from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from benchmarks.bugs.bug import Patch
from benchmarks.bugs.registry import BUGS


class Finder(MetaPathFinder):
    """Finds modules as ever; the loaders of those in `patches` break them."""

    def __init__(self, patches: Mapping[str, Patch], sign: str) -> None:
        self._patches, self._sign = patches, sign

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for modules that stay whole."""
        patch = self._patches.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if patch is not None else None
        if spec is None or spec.loader is None or patch is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            patch(module)
            if self._sign:
                with Path(self._sign).open("a", encoding="utf-8") as file:
                    file.write(f"{fullname}\n")

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(name: str, sign: str) -> None:
    """Break this process. `sign`: a file that gets a line for every module that was broken."""
    sys.meta_path.insert(0, Finder(BUGS[name].patches, sign))
