"""Writes `contents.json`: the digests of the contents of data sets, training and test part, as they are read.

    python -m bench.audit.documented.contents [FOLDER]    # of bundled ones, and of those whose files lie in a folder

A data set that is made from Python's own documentation differs between versions of Python, and has a line for each.
Lines of data sets that are not available stay unchanged.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Collection
from typing import Any

from bench.audit.documented.reading import CONTENTS, content
from bench.base.writing import write_text
from bench.models import MODELS, load
from bench.models.data import data_set, title
from bench.models.data.options import PLAIN, DataOptions
from ddp.data import as_source

OF_PYTHON = ("pydoc",)
"""Data sets that depend on the version of Python."""
BUNDLED = ("digits", "noisy_digits", "pydoc", "shifted_digits", "synthetic", "toy_language")
"""Data sets that need no downloaded files."""
DOWNLOADED = ("mnist", "fashion_mnist", "cifar10", "cifar100", "shakespeare")
"""Data sets whose files are checked when they are downloaded. Here their contents are checked as they are read."""


def made(names: Collection[str] = BUNDLED, folder: str = "data") -> dict[str, dict[str, str]]:
    """Return data set -> part -> digest for these `names`, with default options and with those of the recipes."""
    recipes = [recipe for name in MODELS for recipe in load(name).recipes.values()]
    settings = {title(recipe.data, recipe.data_options): (recipe.data, recipe.data_options) for recipe in recipes}
    settings |= {name: (name, PLAIN) for name in names}
    chosen = {full: each for full, each in settings.items() if each[0] in names}
    return {key(full, name): _digests(name, folder, options) for full, (name, options) in chosen.items()}


def _digests(name: str, folder: str, options: DataOptions) -> dict[str, str]:
    train, test = map(as_source, data_set(name, folder, options).load())
    return {"train": content(train), "test": content(test)}


def key(data: str, name: str) -> str:
    """Return the key of a data set in the table."""
    return f"{data} of Python {platform.python_version()}" if name in OF_PYTHON else data


def _there(name: str, folder: str) -> bool:
    try:
        data_set(name, folder).load()
    except (ValueError, OSError):
        return False
    return True


def main() -> None:
    """Write the table."""
    known: dict[str, Any] = json.loads(CONTENTS.read_text(encoding="utf-8")) if CONTENTS.exists() else {}
    others = made([name for name in DOWNLOADED if _there(name, sys.argv[1])], sys.argv[1]) if sys.argv[1:] else {}
    write_text(CONTENTS, json.dumps(known | made() | others, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
