"""Data and how it is loaded, on the command line: what cannot be is one line and exit code 2, before anything is written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bench.results.rerun_command import command
from bench.results.runfolder import find_runs
from tests.bench.command.cli_words import SOLO
from tests.models.data_files import picture, write_images


@pytest.fixture
def files(tmp_path: Path) -> None:
    """In the folder that commands run in."""
    write_images(tmp_path / "images")
    write_images(tmp_path / "bad")
    (tmp_path / "bad" / "cat" / "0.png").write_bytes(b"no image")
    write_images(tmp_path / "odd")
    picture(tmp_path / "odd" / "eel" / "9.png", size=(9, 9))
    write_images(tmp_path / "wrapped" / "all")
    (tmp_path / "same.txt").write_text("a" * 5000)
    (tmp_path / "flat").mkdir()
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 100)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("data.name=cifar11", "unknown data set 'cifar11'; did you mean 'cifar10'?"),
        ("data.name=text_file", "data set text_file needs data.path=FILE, a text in UTF-8"),
        ("data.name=text_file data.path=none.txt", "cannot read data.path=none.txt: No such file or directory"),
        ("data.name=text_file data.path=short.txt", "data.path=short.txt: 9 characters are too few"),
        ("data.name=text_file data.path=binary.txt", "data.path=binary.txt is no text in UTF-8"),
        ("data.name=text_file data.path=images", "data.path=images is no file"),
        ("data.name=image_folder data.path=flat", "flat has no folders"),
        ("data.name=image_folder data.path=wrapped", "has one class, so there is nothing to tell apart"),
        ("model=char_rnn data.name=text_file data.path=same.txt", "has one character throughout"),
        ("data.name=image_folder data.path=bad", "cannot read image"),
        ("data.name=image_folder data.path=odd", "has 9x9 pixels"),
        ("data.name=image_folder data.path=images data.shape=[5,2,2]", "data.shape: 5 channels"),
        ("data.name=image_folder data.path=images data.shape=[3,2]", "data.shape=[3,2] must be channels"),
        (
            "data.name=image_folder data.path=images data.samples=500",
            "data.samples=500: data set image_folder has",
        ),
        ("data.name=synthetic data.samples=-1", "data.samples=-1 must be a whole number from 1"),
        ("data.name=synthetic data.samples=1e9999", "data.samples=1e9999: "),
        ("data.name=synthetic data.samples=many", "data.samples=many: "),
        ("loader.prefetch=0", "loader prefetch=0 must be a whole number from 1 to 1000"),
        ("loader.memory_max_usage=nan", "loader memory_max_usage=nan must be above 0 and at most 1"),
        ("checkpoint.every=-1", "checkpoint every=-1 must be a whole number from 0 (none)"),
        ("data.name=synthetic data.samples=1000000000000", "GiB are free; make it smaller"),
        ("data.name=synthetic data.classes=1", "data.classes=1 must be a whole number from 2"),
        ("data.name=synthetic data.shape=[1,1,1,1]", "data.shape=[1,1,1,1] must be channels"),
        ("data.name=synthetic data.shape=big", "data.shape=big: "),
        ("data.seed=-1 data.name=synthetic", "data.seed=-1 must be"),
        ("data.path=''", "data.path='' is no path"),
        ("data.seqlen=3", "unknown key 'data.seqlen'; did you mean 'data.seq_len'?"),
    ],
)
def test_data_that_cannot_be_is_one_line(quiet, capsys, words, said):
    assert quiet(*SOLO, *words.split()) == 2
    error = capsys.readouterr().err.replace("decoding images (30 images)\n", "")
    assert error.startswith("bench: ")
    assert said in error
    assert error.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.usefixtures("files")
def test_settings_of_the_data_are_kept_and_repeated(quiet):
    Path("images").rename("my, images='1'")
    words = {"synthetic": ("data.samples=90", "data.shape=[2,4,4]"), "image_folder": (r"data.path='my, images=\'1\''",)}
    for name, settings in words.items():
        assert quiet(*SOLO, f"data.name={name}", *settings, f"output={name}") == 0
        run = find_runs(Path(name))[0][0]
        assert quiet(*shlex.split(command([run]))[3:], "output=again") == 0
        again = find_runs(Path("again"))[0]
        assert run.metrics.run_id in {other.metrics.run_id for other in again}
    run = find_runs(Path("synthetic"))[0][0]
    assert run.config["data"] == {"name": "synthetic", "dir": "data", "samples": 90, "shape": [2, 4, 4]}
    assert run.metrics.data == "synthetic (samples 90, shape 2x4x4)"
