"""`text_file`: a text of the user's own (`data.path`), UTF-8, by characters; its last tenth is test."""

from __future__ import annotations

from pathlib import Path

from bench.models.data.dataset import DataSet, Origin, afford
from bench.models.data.options import DataOptions
from bench.models.data.text import SEQ_LEN, encode, pieces


def _read(path: Path) -> str:
    """Return the text, with line ends as newlines. Raise ValueError, in one line, if the file is no text in UTF-8."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"data.path={path} is no file; give a text file")
        # Memory for the text, its code points, and its tokens while they are encoded.
        afford(path.stat().st_size * 30, f"the text data.path={path}")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot read data.path={path}: {error.strerror}; give a text file") from error
    except UnicodeDecodeError as error:
        byte = f"{error.object[error.start]:#04x}"
        raise ValueError(f"data.path={path} is no text in UTF-8: {byte} cannot be there; convert it") from error
    if not text:
        raise ValueError(f"data.path={path} is empty; give a text file")
    if (place := text.find("\0")) >= 0:
        raise ValueError(f"data.path={path} is no text: character {place} is a zero byte; give a text file in UTF-8")
    return text


def _describe(data_dir: str, options: DataOptions) -> DataSet:
    if options.path is None:
        raise ValueError("data set text_file needs data.path=FILE, a text in UTF-8")
    path, length = options.location, options.seq_len or SEQ_LEN
    text = _read(path)
    vocabulary = "".join(sorted(set(text)))
    where = f"data.path={path}"
    return DataSet((length,), len(vocabulary), lambda: pieces(encode(text, vocabulary, where), length, where))


ORIGIN = Origin(_describe)
