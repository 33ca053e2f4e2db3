"""`shakespeare`: 1115394 characters of Shakespeare's plays (Karpathy 2015, "tiny shakespeare"); the last tenth is test."""

from __future__ import annotations

from pathlib import Path
from string import ascii_letters

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.download import Remote, fetch, is_whole, obtain
from bench.models.data.options import DataOptions
from bench.models.data.text import SEQ_LEN, Pieces, encode, pieces

FILE = Remote(
    "input.txt",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
FOLDER = "shakespeare"
VOCABULARY = "".join(sorted("\n !$&',-.3:;?" + ascii_letters))
"""The 65 characters that occur in the text."""


def _prepare(data_dir: str, options: DataOptions) -> None:
    folder = Path(data_dir) / FOLDER
    path = folder / FILE.name
    if not path.is_file():
        obtain(FOLDER, Path(data_dir), folder, (FILE.name,), lambda: _download(folder), "put this file there")
    elif not is_whole(path, FILE.digest):
        raise ValueError(
            f"damaged file {path} ({path.stat().st_size} bytes): its check sum is not that of tiny shakespeare; delete it "
            "to have it downloaded again, or choose data.name=text_file for another text"
        )
    _describe(data_dir, options).load()


def _download(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    fetch(FILE, folder)


def _load(path: Path, seq_len: int) -> tuple[Pieces, Pieces]:
    try:
        text = path.read_bytes().decode("ascii")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"damaged file {path}: {error}") from error
    return pieces(encode(text, VOCABULARY, str(path)), seq_len, str(path))


def _describe(data_dir: str, options: DataOptions) -> DataSet:
    length = options.seq_len or SEQ_LEN
    return DataSet((length,), len(VOCABULARY), lambda: _load(Path(data_dir) / FOLDER / FILE.name, length))


ORIGIN = Origin(_describe, _prepare)
