"""`pydoc`: the documentation text inside CPython (`help()` topics; PSF licence), 360000 characters, the last tenth is test.

The text grows a little with every version of Python. What models see stays of one size: topics in order of their names,
paragraphs that were there before left out (else a part of the test text would be trained on), the first 360,000 characters;
the vocabulary is fixed. Between versions, results compare as closely as such texts do; within one, exactly.
"""

from __future__ import annotations

from functools import cache

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.options import DataOptions
from bench.models.data.text import Pieces, encode, generated, pieces

VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
"""End of line and printable ASCII: 96 characters."""
CHARACTERS = 360_000
NAME = "data set pydoc"
_ASCII = str.maketrans({"–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "\t": "    ", "\r": ""})


@cache
def text() -> str:
    """Return the text, of characters of `VOCABULARY` alone. Raise ValueError for a Python that comes without it."""
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
