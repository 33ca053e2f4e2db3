"""What replaces a baseline, and what wants a reason."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.validate.baselines.reference import Broken, read, sealed, text
from bench.validate.revisions.revision import accept, diff, whole, write_proposals
from tests.bench.references import FIVE, TODAY, TWENTY, cell
from tests.bench.validate.baselines.kept_baseline import base as base
from tests.bench.validate.baselines.kept_baseline import the_file


def test_a_file_lies_in_the_folder_of_baselines_whatever_the_data_are_called(made: dict[str, Any]) -> None:
    for data, folder in (("pydoc (seq_len 64, samples 768)", "pydoc_seq_len_64_samples_768"), ("../../a b", "a_b")):
        place = sealed(made | {"data": data}).place
        assert place.parts[:-1] == (f"mlp-{folder}-quick",)


def test_a_better_baseline_replaces_and_remembers(base: Path, tmp_path: Path) -> None:
    old = read(the_file(base))
    runs = cell(tmp_path / "new", "solo", tuple(value + 0.001 for value in TWENTY))
    write_proposals(runs, tmp_path / "next", TODAY)
    told = "\n".join(accept(tmp_path / "next", base))
    new = read(the_file(base))
    assert (new.supersedes, new.because, new.seeds) == (old.digest, None, 20)
    assert "0.9740 [0.9701, 0.9779] n=5" in told
    assert "n=20" in told
    assert "not worse" in told


def test_a_worse_baseline_wants_a_reason(base: Path, tmp_path: Path) -> None:
    before = the_file(base).read_bytes()
    write_proposals(cell(tmp_path / "new", "solo", tuple(v - 0.1 for v in FIVE)), tmp_path / "next", TODAY)
    with pytest.raises(ValueError, match=r"asks less .* quality not shown to be as good"):
        accept(tmp_path / "next", base)
    assert the_file(base).read_bytes() == before
    accept(tmp_path / "next", base, because="less data")
    assert read(the_file(base)).because == "less data"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of a candidate with twenty seeds and their speeds."""
    folder = tmp_path_factory.mktemp("made")
    write_proposals(cell(folder / "runs", "solo", TWENTY), folder / "next", TODAY)
    body: dict[str, Any] = json.loads(the_file(folder / "next").read_text())
    speeds = [{"seed": seed, "value": 1000.0 + seed, "run_id": ""} for seed in range(20)]
    body["metrics"]["samples_per_s"] = {"unit": "samples per second", "higher_is_better": True, "scale": "log"} | {
        "margin": 0.1,
        "margin_why": "said",
        "resolution": 1e-3,
        "values": speeds,
    }
    return body


Change = Callable[[dict[str, Any]], object]


def proposed(folder: Path, made: dict[str, Any], change: Change = lambda body: None) -> Path:
    """A candidate that was made with something else."""
    body = copy.deepcopy(made)
    change(body)
    reference = sealed(body)
    (folder / reference.place).parent.mkdir(parents=True)
    (folder / reference.place).write_text(text(reference))
    return folder


def fewer(body: dict[str, Any]) -> None:
    for metric in body["metrics"].values():
        metric["values"] = metric["values"][:5]


def wider(body: dict[str, Any]) -> None:
    for value in body["metrics"]["quality"]["values"]:
        value["value"] = 0.974 + 4 * (value["value"] - 0.974)


WEAKER: dict[str, tuple[Change, str]] = {
    "seeds": (fewer, "5 seeds, 20 before, and 20 make a gate"),
    "scatter": (wider, "quality scatters more, sd 0.01161, 0.002902 before"),
    "target": (lambda body: body["target"].update(value=0.9), "a target that is reached sooner, 0.9, 0.9682 before"),
    "no metric": (lambda body: body["metrics"].pop("samples_to_target"), "no samples_to_target, which it had"),
    "no speed": (lambda body: body["metrics"].pop("samples_per_s"), "no samples_per_s, which it had"),
    "no curve": (lambda body: body["curves"].pop("eval"), "no curve of eval, which it had"),
    "margin": (
        lambda body: body["metrics"]["quality"].update(margin=0.02),
        "quality has a larger margin, 0.02, 0.007255 before",
    ),
    "another target": (
        lambda body: body["metrics"]["samples_to_target"].update(target=0.9),
        "samples_to_target has another target, 0.9, 0.95 before",
    ),
    "missed": (
        lambda body: body["metrics"]["samples_to_target"].update(missed=[3]),
        "samples_to_target is missed by 1 seeds, by 0 before",
    ),
    "another measure": (lambda body: body["metrics"]["quality"].update(unit="bits"), "quality is another measure"),
}


@pytest.mark.parametrize("how", WEAKER)
def test_a_baseline_that_asks_less_wants_a_reason(tmp_path: Path, made: dict[str, Any], how: str) -> None:
    change, reason = WEAKER[how]
    base = tmp_path / "base"
    accept(proposed(tmp_path / "a", made), base)
    accept(proposed(tmp_path / "b", made), base)  # the same again asks nobody
    before = the_file(base).read_bytes()
    proposed(tmp_path / "c", made, change)
    with pytest.raises(ValueError, match=f"asks less than the baseline .*{re.escape(reason)}.*--because"):
        accept(tmp_path / "c", base)
    assert the_file(base).read_bytes() == before
    assert any(reason in line for line in accept(tmp_path / "c", base, because="so it is"))
    assert read(the_file(base)).because == "so it is"
    if how in ("seeds", "scatter"):
        accept(proposed(tmp_path / "d", made), base)  # and back: that asks more


def test_a_baseline_gives_way_to_no_older_one(tmp_path: Path, made: dict[str, Any]) -> None:
    base = tmp_path / "base"
    accept(proposed(tmp_path / "a", made), base)
    late = proposed(tmp_path / "b", made, lambda body: body.update(created="2026-11-20"))
    with pytest.raises(ValueError, match="proposed on 2026-11-20, before the baseline that it would replace"):
        accept(late, base, because="no reason suffices")
    accept(proposed(tmp_path / "c", made, lambda body: body.update(created="2026-11-22")), base)
    assert read(the_file(base)).created == "2026-11-22"


def test_what_was_accepted_is_a_proposal_no_more(tmp_path: Path, made: dict[str, Any]) -> None:
    folder = proposed(tmp_path / "a", made)
    (folder / "notes.txt").write_text("mine")
    accept(folder, tmp_path / "base")
    assert [path.name for path in folder.rglob("*")] == ["notes.txt"]
    with pytest.raises(ValueError, match="no proposals"):
        accept(folder, tmp_path / "base")
    one_file = the_file(proposed(tmp_path / "b", made))
    accept(one_file, tmp_path / "base")
    assert not one_file.exists()
    accept(tmp_path / "base", tmp_path / "base")
    assert the_file(tmp_path / "base").exists()


def test_what_is_replaced_goes_wherever_its_file_lies(tmp_path: Path, made: dict[str, Any]) -> None:
    """One cell has one file: a hash is of what is trained, and data, engine or recipe may have got another name since."""
    base = tmp_path / "base"
    accept(proposed(tmp_path / "a", made), base)
    (base / "old").mkdir()
    the_file(base).rename(base / "old" / "solo.json")
    told = accept(proposed(tmp_path / "b", made, lambda body: body.update(recipe="fast", created="2026-11-22")), base)
    assert not any("cannot be" in line for line in told)
    assert the_file(base).parent.name == "mlp-digits-fast"
    assert not (base / "old").exists()
    assert len(whole(base).references) == 1
    the_file(base).rename(base / "mine.json")
    accept(base, base)
    assert the_file(base).parent.name == "mlp-digits-fast"


def test_an_edited_proposal_is_not_accepted(base: Path, tmp_path: Path) -> None:
    write_proposals(cell(tmp_path / "new", "solo", FIVE), tmp_path / "next", TODAY)
    path = the_file(tmp_path / "next")
    path.write_text(path.read_text().replace("0.97", "0.98"))
    with pytest.raises(Broken, match="does not fit"):
        accept(tmp_path / "next", base)


def test_diff_shows_old_and_new(base: Path, tmp_path: Path) -> None:
    write_proposals(cell(tmp_path / "new", "solo", tuple(v - 0.1 for v in FIVE)), tmp_path / "next", TODAY)
    told = "\n".join(diff(whole(base), whole(tmp_path / "next")))
    assert "0.9740 [0.9701, 0.9779] n=5" in told
    assert "0.8740 [0.8701, 0.8779] n=5" in told
    assert "worse by more than the margin" in told
    assert diff(whole(base), whole(base)) == ["no difference"]
    with pytest.raises(ValueError, match="no such file"):
        whole(tmp_path / "nothing")
