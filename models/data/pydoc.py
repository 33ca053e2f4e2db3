"""`pydoc`: the documentation text inside CPython (`help()` topics; PSF licence), 360000 characters, the last tenth is test.

The text grows a little with every version of Python. The data set has a fixed size: topics sorted by name, without repeated
paragraphs (otherwise training would see a part of the test), cut to 360,000 characters. The vocabulary is fixed. Results
with one version of Python are exactly comparable; between versions, the text differs a little.
"""

from __future__ import annotations

from functools import cache

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.options import DataOptions
from bench.models.data.text import Pieces, encode, generated, pieces

VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
"""Newline and printable ASCII: 96 characters."""
CHARACTERS = 360_000
NAME = "data set pydoc"
_ASCII = str.maketrans({"–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "\t": "    ", "\r": ""})


@cache
def text() -> str:
    """Return the text, in characters of `VOCABULARY` only. Raise ValueError if Python was installed without it."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ValueError(
            "data set pydoc: this Python comes without its documentation (module pydoc_data); install the whole standard "
            "library, or choose data.name=text_file"
        ) from error
    paragraphs = (part for name in sorted(topics) for part in topics[name].split("\n\n") if part.strip())
    plain = "\n\n".join(dict.fromkeys(paragraphs)).translate(_ASCII)
    known = set(VOCABULARY)
    return "".join(letter if letter in known else "?" for letter in plain)[:CHARACTERS]


def _pieces(length: int) -> tuple[Pieces, Pieces]:
    return pieces(encode(text(), VOCABULARY, NAME), length, NAME)


def _describe(data_dir: str, options: DataOptions) -> DataSet:
    return generated(VOCABULARY, _pieces, options)


ORIGIN = Origin(_describe)
