"""Every command that is printed runs as it is printed, from the folder where it is read."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import bench as package
from bench.base import environment
from bench.command import cli
from tests.bench import fake_engine
from tests.bench.conftest import Bench
from tests.bench.report_parts import undrawn as undrawn

SOURCES = Path(package.__file__).parent
PRINTED = {
    "command/parser.py",  # the name of a verb, before --help
    "config/hydra_errors.py",
    "command/verbs/validate_command.py",
    "runner/launch.py",  # run by tests/runtime/losses/test_shortage.py
    "command/verbs/explain_command.py",  # read by tests/predict/test_explained.py
    "command/printed/help_page.py",
    "command/verbs/listing.py",
    "command/verbs/more_command.py",  # run by tests/bench/command/test_more.py
    "command/run.py",  # `dashboard` and the output folder
    "results/rerun_command.py",
    "results/analyze.py",  # `join`, run by tests/commands/test_join.py
    "results/runfolder.py",  # run by tests/commands/test_going_on.py and tests/bench/command/test_full_disk.py
    "command/printed/summary.py",
    "validate/verdicts/next_runs.py",
    "validate/baselines/reference.py",
    "validate/revisions/revision.py",
    "validate/verdicts/verdict.py",  # takes them out
}
"""Sources that have commands to print. A new one: a test of it goes below."""
ENDS = {";", "(", ")", "|"}
Capture = pytest.CaptureFixture[str]


def commands(text: str) -> list[list[str]]:
    """The words of every command in a text, without `python -m bench`, as a shell would read them."""
    found = []
    for start in re.finditer(r"python -m bench(?= |$)", text):
        lexer = shlex.shlex(text[start.end() :].partition("\n")[0], posix=True, punctuation_chars=";&|()")
        lexer.whitespace_split = True
        lexer.commenters = ""
        words = []
        for word in lexer:
            if word in ENDS or word == "&&":
                break
            words.append(word)
        found.append(words)
    return found


def said(capsys: Capture) -> str:
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.fixture
def clean(bench: Bench, undrawn: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """A harness of a committed source, with baselines of its own and no pictures, in a folder of its own."""
    monkeypatch.setattr(environment, "source", lambda: {"sha": "abc", "dirty": False})
    monkeypatch.setattr(cli, "BASELINES", tmp_path / "base lines")
    monkeypatch.setattr(cli, "OWN_BASELINES", tmp_path / "base lines")
    monkeypatch.setattr("bench.timeline.draw", lambda *picture: None)
    (tmp_path / "base lines").mkdir()
    return bench


SOLO = ("model=mlp", "mode=solo", "train.epochs=1", "report=false", "validate=false")
OUT = "a tree, ü"


def test_from_no_baseline_to_a_verdict(
    clean: Bench, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands for a baseline, then those for more seeds; runs in a tree of their own, data in a folder of its own."""
    (tmp_path / "my data").mkdir()
    ways = (["mode=solo"], ["mode=nccl_sync", "world_size=1"])
    for way in ways:
        words = [*SOLO, *way, "seed=0", "data.dir='my data'", f"output='{OUT}'"]
        assert clean(*words) == 0
    fake_engine.runs.clear()
    capsys.readouterr()
    assert clean("validate", OUT) == 4
    lines = [line for line in said(capsys).splitlines() if line.startswith("NO_BASELINE")]
    assert len(lines) == 2
    train, propose, accept = commands(lines[0])
    for words in (train, propose, accept):
        assert clean(*words, *(["report=false", "validate=false"] if words is train else [])) == 0
    assert len(fake_engine.runs) == 20
    assert {place(job) for job in fake_engine.runs} == {str(tmp_path / "my data")}
    capsys.readouterr()
    monkeypatch.chdir(tmp_path / "my data")  # and so from another folder
    assert clean("validate", f"../{OUT}", "--baseline", "../base lines") in (3, 4)
    more = {tuple(words) for words in commands(said(capsys)) if any(word.startswith("output=") for word in words)}
    assert more
    for words in more:
        assert clean(*words, "report=false", "validate=false") == 0
    assert place(fake_engine.runs[-1]) == str(tmp_path / "my data")
    assert len(list((tmp_path / OUT / "mlp" / "solo").iterdir())) > 1


def place(job: Any) -> str:
    """Where a task takes its data from."""
    return str(job.task.args[-1])


def test_what_a_verdict_and_a_report_reproduce(clean: Bench, capsys: Capture) -> None:
    for words in (["mode=solo", "data.dir=elsewhere"], ["mode=nccl_cadence", "world_size=2"]):
        assert clean(*SOLO, *words) == 0
    folders = sorted(str(path) for path in Path("runs").glob("*/*/*"))
    capsys.readouterr()
    assert clean("report", "runs") == 0
    printed = commands(Path("reports/runs/report.md").read_text())
    assert len(printed) == 2
    for words in printed:
        assert clean(*words, "report=false", "validate=false", "output=again") == 0
    assert sorted(str(path).replace("again", "runs") for path in Path("again").glob("*/*/*")) == folders


def test_the_way_out_of_a_changed_source_tree(clean: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """To commit is not enough: what was trained before stays what it was. Training again is."""
    with monkeypatch.context() as patch:
        patch.setattr(environment, "source", lambda: {"sha": "abc", "dirty": True})
        assert clean("-m", *SOLO, "seed=0,1,2,3,4", f"output='{OUT}'") == 0
    capsys.readouterr()
    assert clean("baseline", "propose", OUT) == 2
    told = said(capsys)
    assert "which a commit does not mend afterwards" in told
    (again,) = commands(told)
    assert clean(*again, "report=false", "validate=false") == 0
    capsys.readouterr()
    assert clean("baseline", "propose", OUT, "--out", "pro posals", "--baseline", "base lines/mine") == 0
    (accept,) = commands(said(capsys))
    assert clean(*accept) == 0
    assert list(Path("base lines/mine").rglob("*.json"))


def test_the_way_on_from_runs_that_failed(clean: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("BENCH_FAKE", "lose")
        assert clean("-m", *SOLO, "seed=0,1,2,3,4") == 5
    capsys.readouterr()
    assert clean("baseline", "propose") == 2
    (again,) = commands(said(capsys))
    assert clean(*again, "report=false", "validate=false") == 0
    assert clean("baseline", "propose") == 0


def test_what_asks_less_is_shown_beside_what_it_replaces(clean: Bench, capsys: Capture) -> None:
    assert clean("-m", *SOLO, "seed=0,1,2,3,4,5") == 0
    assert clean("baseline", "propose") == 0
    assert clean("baseline", "accept") == 0
    for path in list(Path("runs/mlp/solo").iterdir())[:1]:
        path.rename(f"{path.name}.aside")  # five seeds are less than six
    assert clean("baseline", "propose") == 0
    capsys.readouterr()
    assert clean("baseline", "accept") == 2
    (diff,) = commands(said(capsys))
    assert clean(*diff) == 0


@pytest.mark.parametrize("path", ["empty", "an empty one, ü"])
def test_an_empty_folder_says_how_to_fill_it(clean: Bench, capsys: Capture, path: str) -> None:
    Path(path).mkdir()
    assert clean("validate", path) == 2
    (make,) = commands(said(capsys))
    assert clean(*make, *SOLO) == 0
    assert list(Path(path).glob("mlp/solo/*/metrics.json"))


@pytest.mark.parametrize("verb", ["validate", "report"])
def test_a_report_and_a_folder_of_other_things_are_not_filled(clean: Bench, capsys: Capture, verb: str) -> None:
    for name, file in (("reports/example", "report.md"), ("docs", "notes.md")):
        Path(name).mkdir(parents=True)
        (Path(name) / file).write_text("x")
        assert clean(verb, name) == 2
        told = said(capsys)
        assert "output=" not in told
        assert ("is a report; give the run" in told) is (file == "report.md")


def test_a_run_beside_damaged_ones(clean: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("BENCH_FAKE", "lose")
        assert clean(*SOLO, "seed=1", "model=logistic", f"output='{OUT}'") == 5
    capsys.readouterr()
    clean("-m", *SOLO[:3], "seed=0,2", f"output='{OUT}'", "report=false")
    (words,) = [words for words in commands(said(capsys)) if words[0] == "validate"]
    assert words == ["validate", OUT]
    assert clean(*words) == 5


def test_what_an_experiment_lacks_is_trained_where_it_was_looked_for(clean: Bench, capsys: Capture) -> None:
    assert clean(*SOLO, f"output='{OUT}'") == 0
    capsys.readouterr()
    clean("validate", OUT, "--experiment", "smoke")
    (words,) = [words for words in commands(said(capsys)) if words[0].startswith("experiment=")]
    assert words[1:] == [f"output='{OUT}'"]
    assert clean("plan", *words) == 0
    assert "0 finished" in said(capsys)


def test_what_list_and_mistakes_lead_to(clean: Bench, capsys: Capture, tmp_path: Path) -> None:
    assert clean("list") == 0
    assert commands(said(capsys)) == [["list", group] for group in ("checks", "sections", "recipes")]
    for mistake in (["model=1"], ["report", "--nonsense"], ["baseline", "propose", "--nonsense"]):
        assert clean(*mistake) == 2
        (words,) = commands(said(capsys))
        if words[-1] == "--help":
            with pytest.raises(SystemExit) as ended:
                clean(*words)
            assert ended.value.code == 0
        else:
            assert clean(*words) == 0
        capsys.readouterr()
    assert clean("-m", *SOLO, "seed=0,1,2,3,4") == 0
    capsys.readouterr()
    for mistake in (["baseline", "audit"], ["baseline", "accept", "runs"]):
        assert clean(*mistake) == 2
        (words,) = commands(said(capsys))
        assert clean(*(word.replace("RUNS", "runs") for word in words)) == 0
        capsys.readouterr()


def test_a_broken_baseline_is_made_anew(clean: Bench, capsys: Capture) -> None:
    Path("base lines/x.json").write_text("{")
    assert clean("-m", *SOLO, "seed=0,1,2,3,4") == 0
    capsys.readouterr()
    clean("validate")
    (words,) = [words for words in commands(said(capsys)) if words[-1] == "RUNS"]
    assert clean(*words[:-1], "runs") == 0


def test_the_help_shows_commands_that_are_read(clean: Bench, capsys: Capture) -> None:
    assert clean("--help") == 0
    shown = commands(said(capsys))
    examples = [words for words in shown if words and not any(set("[|") & set(word[0]) for word in words)]
    examples = [words for words in examples if "=" in " ".join(words) and "[key=value" not in " ".join(words)]
    assert len(examples) >= 2
    for words in examples:
        words = words[: next((n for n, word in enumerate(words) if word.startswith("(")), None)]
        assert clean(*(words if "--cfg" in words else ["plan", *words])) == 0


def test_no_other_source_prints_commands() -> None:
    """Strings, that is, not docstrings, which nobody is shown."""
    assert {file.relative_to(SOURCES).as_posix() for file in SOURCES.rglob("*.py") if prints(file)} == PRINTED


def prints(file: Path) -> bool:
    if b"python" not in (source := file.read_bytes()):
        return False
    tree = ast.parse(source)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return any("python -m bench" in json.dumps(node.value) for node in texts if id(node) not in bare)
