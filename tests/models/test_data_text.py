"""Texts: cut into pieces that follow one another, held out at the end, refused where they are none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.models.data import DataOptions, data_set, prepare, shakespeare, toy_language
from bench.models.data.pydoc import VOCABULARY, text
from bench.models.data.text import encode, pieces


def parts(name: str, folder: Path, **settings: object) -> list[torch.Tensor]:
    """Tokens of train and eval."""
    sources = data_set(name, str(folder), DataOptions(**settings)).load()
    return [source.batch(torch.arange(len(source)))[0] for source in sources]


def test_the_bundled_text_has_one_size_and_ends_with_what_is_evaluated() -> None:
    assert len(text()) == 360_000
    train, test = parts("pydoc", Path(), seq_len=100)
    assert (len(train), len(test)) == (3239, 359)
    assert data_set("pydoc", options=DataOptions(seq_len=100)).shape == (100,)
    assert "".join(VOCABULARY[token] for token in train[7]) == text()[700:800]
    assert "".join(VOCABULARY[token] for token in test[0]) == text()[324_000:324_100]
    known = text()[:324_000]
    again = [text()[start : start + 64] in known for start in range(324_000, 359_900, 64)]
    assert sum(again) < 0.06 * len(again), "what is evaluated was not trained on"


def test_the_toy_language_has_the_words_that_may_follow() -> None:
    spelt, after = toy_language.words(), toy_language.followers()
    assert len(set(spelt)) == len(spelt) == len(after) == 64
    assert {len(word) for word in spelt} == {4, 6}
    assert all(len(set(next_ones)) == 16 for next_ones in after)
    places = {word: place for place, word in enumerate(spelt)}
    walk = [places[word] for word in toy_language.text("train", 300_000).split(" ")[:-1]]
    pairs = np.zeros((64, 64), dtype=int)
    np.add.at(pairs, (walk[:-1], walk[1:]), 1)
    allowed = np.zeros((64, 64), dtype=bool)
    for word, next_ones in enumerate(after):
        allowed[word, next_ones] = True
    assert not pairs[~allowed].any()
    assert pairs[allowed].min() > 15, "with equal odds: 50 of each are expected"


def test_no_piece_of_the_toy_language_is_on_both_sides() -> None:
    train, test = parts("toy_language", Path(), seq_len=32)
    assert (len(train), len(test)) == (9374, 1562)
    seen = {piece.numpy().tobytes() for piece in train}
    assert not any(piece.numpy().tobytes() in seen for piece in test)
    assert len(parts("toy_language", Path(), seq_len=32, samples=7)[0]) == 7
    with pytest.raises(ValueError, match=r"data\.samples=9375: data set toy_language has 9374 samples to train on"):
        parts("toy_language", Path(), seq_len=32, samples=9375)
    with pytest.raises(ValueError, match=r"data\.seq_len=50000: data set toy_language has 50000 characters"):
        parts("toy_language", Path(), seq_len=50_000)


def test_pieces_use_all_that_fills_one() -> None:
    tokens = np.arange(101, dtype=np.uint8)
    train, test = pieces(tokens, 9, "it")
    assert (len(train), len(test)) == (9, 1)  # 90 tokens have 9 pieces and what follows the last; 11 have one
    inputs, following = train.batch(torch.tensor([8, 0]))
    assert inputs.tolist() == [list(range(72, 81)), list(range(9))]
    assert following.tolist() == [list(range(73, 82)), list(range(1, 10))]
    assert test.batch(torch.tensor([0]))[1].tolist() == [list(range(91, 100))]
    assert train.tensors[0].dtype == torch.uint8


def test_a_text_shorter_than_its_pieces() -> None:
    with pytest.raises(
        ValueError, match=r"360000 characters are too few .* give it 360001 or more, or data\.seq_len=35999"
    ):
        prepare("pydoc", "", DataOptions(seq_len=36_000))
    assert len(parts("pydoc", Path(), seq_len=35_999)[1]) == 1


@pytest.mark.parametrize("length", range(40))
def test_what_is_said_of_a_short_text_is_true(length: int) -> None:
    tokens, longer = np.zeros(length, dtype=np.uint8), np.zeros(31, dtype=np.uint8)
    assert len(pieces(longer, 3, "it")[1]) == 1
    if length < 31:
        with pytest.raises(ValueError, match="give it 31 or more") as caught:
            pieces(tokens, 3, "it")
        _, fits, most = str(caught.value).partition("data.seq_len=")
        assert bool(fits) == (length >= 11)
        assert not fits or pieces(tokens, int(most.split()[0]), "it")


def test_tokens_of_any_alphabet() -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 300))) + "🙂"
    tokens = encode(letters[::-1], letters, "it")
    assert tokens.tolist() == list(range(300, -1, -1))
    assert encode("ba", "ab", "it").dtype == np.uint8
    with pytest.raises(ValueError, match="it: character 'c' at 1 is not in the vocabulary"):
        encode("ac", "ab", "it")


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "Wörter.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "größe\r\n".encode() * 50)
    asked = DataOptions(path=str(path), seq_len=5)
    prepare("text_file", "", asked)
    assert (data_set("text_file", "", asked).shape, data_set("text_file", "", asked).classes) == ((5,), 6)
    train, _ = parts("text_file", tmp_path, path=str(path), seq_len=5)
    assert "".join("\negrßö"[token] for token in train.flatten())[:12] == "größe\ngröße\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"cannot read data\.path=.*No such file"),
        (b"", "is empty; give a text file"),
        (b"abc\xffdef" * 100, "is no text in UTF-8: 0xff cannot be there"),
        ("größe".encode("latin-1") * 100, "is no text in UTF-8"),
        (b"\x89PNG\r\n\x1a\n" * 100, "is no text in UTF-8: 0x89"),
        (b"ab\0c" * 100, "is no text: character 2 is a zero byte"),
        (b"abc", r"3 characters are too few .* give it 1281 or more$"),
        (b"abcdef" * 100, r"600 characters are too few .* or data\.seq_len=59 or less"),
    ],
)
def test_what_is_no_text_is_named(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        prepare("text_file", "", DataOptions(path=str(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="is no file; give a text file"):
            prepare("text_file", "", DataOptions(path=str(path)))
    with pytest.raises(ValueError, match="File name too long; give a text file"):
        prepare("text_file", "", DataOptions(path=str(tmp_path / ("x" * 300))))
    with pytest.raises(ValueError, match=r"needs data\.path=FILE"):
        prepare("text_file", "")


def test_a_damaged_shakespeare_is_named(tmp_path: Path) -> None:
    path = tmp_path / "shakespeare" / "input.txt"
    path.parent.mkdir()
    path.write_text("First Citizen:\n" * 1000)
    with pytest.raises(ValueError, match=rf"damaged file {path} \(15000 bytes\).*delete it.*data\.name=text_file"):
        prepare("shakespeare", str(tmp_path))
    assert len(shakespeare.VOCABULARY) == 65
