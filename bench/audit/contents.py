"""Writes `contents.json`: the digests of what bundled data sets hold, training and test part.

    python -m bench.audit.contents

A data set that is made from what Python itself brings differs between its versions, and has a line for each.
"""

from __future__ import annotations

import json
import platform
from typing import Any

from bench.audit.reading import CONTENTS, content
from bench.base.writing import write_text
from bench.models import MODELS, load
from bench.models.data import data_set, title
from bench.models.data.options import PLAIN, DataOptions
from ddp.data import as_source

OF_PYTHON = ("pydoc",)
"""Data sets that follow the version of Python."""
BUNDLED = ("digits", "noisy_digits", "pydoc", "shifted_digits", "synthetic", "toy_language")
"""Data sets that need no file of others; those that are downloaded are held to digests when they come."""


def made() -> dict[str, dict[str, str]]:
    """Return data set -> part -> digest, of the bundled ones, as they are and as recipes take them."""
    recipes = [recipe for name in MODELS for recipe in load(name).recipes.values()]
    settings = {title(recipe.data, recipe.data_options): (recipe.data, recipe.data_options) for recipe in recipes}
    settings |= {name: (name, PLAIN) for name in BUNDLED}
    return {key(full, name): _digests(name, options) for full, (name, options) in settings.items() if name in BUNDLED}


def _digests(name: str, options: DataOptions) -> dict[str, str]:
    train, test = map(as_source, data_set(name, options=options).load())
    return {"train": content(train), "test": content(test)}


def key(data: str, name: str) -> str:
    """Return the key of a data set in the table."""
    return f"{data} of Python {platform.python_version()}" if name in OF_PYTHON else data


def main() -> None:
    """Write the table; lines of other versions of Python stay."""
    known: dict[str, Any] = json.loads(CONTENTS.read_text(encoding="utf-8")) if CONTENTS.exists() else {}
    others = {name: parts for name, parts in known.items() if " of Python " in name}
    write_text(CONTENTS, json.dumps(others | made(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
