"""Verdicts for machines: JUnit, GitHub's annotations and summary, the command; the same bytes twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.base.exitcodes import Exit
from bench.report import markdown
from bench.report.page import Page
from bench.report.sections import banner
from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.validate import Judgement, Terms, Verdict, judge
from bench.validate.outputs import github
from bench.validate.outputs.junit import xml
from bench.validate.verdicts.verdict import EXITS, Name
from tests.bench.references import FIVE, TODAY, baselines, cell, with_eval
from tests.bench.streams import make_spec, write_run


def verdict(name: Name, number: int = 0, line: str = "said") -> Verdict:
    return Verdict(name, "quality", f"cell {number}", line, EXITS[name])


def test_every_verdict_has_an_exit_code_and_a_place_in_junit() -> None:
    judgement = Judgement([verdict(name, number) for number, name in enumerate(EXITS)], [])
    root = ElementTree.fromstring(xml(judgement))
    kinds = {suite.get("name"): [child.tag for child in suite.find("testcase") or ()] for suite in root}
    assert len(kinds) == len(EXITS)
    assert [suite.get("failures") for suite in root].count("1") == 3
    assert judgement.code is Exit.REGRESSION


def test_junit_has_the_text_and_survives_hostile_text() -> None:
    hostile = 'a "<&>\x00\x1b]]> \ud800'
    judgement = Judgement([verdict("FAIL", line=hostile)], [], {"cell 0": {"hash": "abc", "seeds": "0,1"}})
    root = ElementTree.fromstring(xml(judgement).encode())
    (failure,) = root.iter("failure")
    assert failure.get("type") == "FAIL"
    assert failure.text == 'a "<&>??]]> ?'
    assert {p.get("name"): p.get("value") for p in root.iter("property")} == {"hash": "abc", "seeds": "0,1"}


def test_annotations_keep_githubs_limits() -> None:
    many = [verdict("FAIL", n) for n in range(25)] + [verdict("INCONCLUSIVE", n) for n in range(10)]
    told = github.commands(Judgement([*many, verdict("PASS"), verdict("XFAIL")], []))
    errors = [line for line in told if line.startswith("::error ")]
    warnings = [line for line in told if line.startswith("::warning ")]
    assert (len(errors), len(warnings), len(told)) == (10, 10, 20)
    assert "title=16 more::" in errors[-1]
    assert "cell 24" in errors[-1]


def test_annotations_are_escaped_and_short() -> None:
    (line,) = github.commands(Judgement([verdict("FAIL", line="50%\nof, it: all")], []))
    assert line == "::error title=FAIL cell 0 quality::50%25%0Aof, it: all"
    (line,) = github.commands(Judgement([replace(verdict("FAIL", line="x" * 9000), cell="a:b,c")], []))
    assert line.startswith("::error title=FAIL a%3Ab%2Cc quality::")
    assert len(line) < 2100


@pytest.mark.parametrize("room", [10, 300, 5000, 1 << 20])
def test_a_summary_never_takes_more_room_than_there_is(room: int) -> None:
    judgement = Judgement([verdict("PASS", n, "é" * 50) for n in range(300)] + [verdict("FAIL", 999)], ["of all"])
    text = github.markdown(judgement, room)
    assert len(text.encode()) <= room
    if room == 5000:
        assert "(cut: the rest is in the log of the step)" in text
        assert text.index("cell 999") < text.index("cell 0")
    assert ("cut" in text) == (room in (300, 5000))


def test_equal_folders_give_equal_bytes(tmp_path: Path) -> None:
    base = baselines(tmp_path)
    runs = cell(tmp_path / "runs", "nccl_sync", FIVE)
    cell(tmp_path / "runs", "solo", FIVE)
    both = [judge([runs], base, Terms(today=TODAY)) for _ in range(2)]
    assert both[0] == both[1]
    assert xml(both[0]) == xml(both[1])
    assert github.markdown(both[0]) == github.markdown(both[1])
    found = tuple(cells(find_runs(runs)[0]))
    pages = [banner.section(Page(runs, tmp_path, found, (), tuple(judgement.verdicts))) for judgement in both]
    assert pages[0] == pages[1]
    assert "PASS" in markdown.render(pages[0])


def test_the_command_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.command import cli

    base = baselines(tmp_path)
    cell(tmp_path / "runs", "nccl_sync", (0.5,))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    words = [
        "validate",
        str(tmp_path / "runs"),
        "--baseline",
        str(base),
        "--junit",
        str(tmp_path / "reports" / "junit.xml"),
    ]
    assert cli.dispatch(words) == 1
    said = capsys.readouterr().out
    assert "::error title=FAIL mlp nccl_sync ×2 quality::" in said
    assert "exit code 1 (regression)" in said
    assert "| FAIL | mlp nccl_sync ×2 | quality |" in (tmp_path / "summary.md").read_text()
    assert ElementTree.parse(tmp_path / "reports" / "junit.xml").getroot().tag == "testsuites"
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert cli.dispatch([*words, "--brief"]) == 1
    brief = capsys.readouterr().out
    assert "PASS  " not in brief
    assert "::error" not in brief


def test_too_few_seeds_can_be_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bench.command import cli

    base = baselines(tmp_path)
    cell(tmp_path / "runs", "nccl_sync", FIVE[:2])
    words = ["validate", str(tmp_path / "runs"), "--baseline", str(base)]
    assert cli.dispatch(words) == 3
    assert cli.dispatch([*words, "--allow-inconclusive"]) == 0
    said = capsys.readouterr().out
    assert "exit code 0 (ok)" in said
    assert "INCONCLUSIVE, which count as exit code 0" in said


def test_runs_that_an_experiment_planned_are_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep that was killed: what is there passes, and that is not all."""
    from bench.command import cli

    base = baselines(tmp_path)
    cell(tmp_path / "runs", "nccl_sync", FIVE[:3])
    words = ["validate", str(tmp_path / "runs"), "--baseline", str(base), "--allow-inconclusive"]
    assert cli.dispatch(words) == 0
    assert cli.dispatch([*words, "--experiment", "ci"]) == 3
    said = capsys.readouterr().out
    assert "experiment ci  planned: 33 of the 36 runs that it plans are not here: mlp solo ×1 seeds 0, 1, 2; " in said
    assert "mlp nccl_sync" not in said.partition("not here:")[2].partition(";")[0]
    assert "python -m bench experiment=ci" in said
    assert cli.dispatch([*words, "--experiment", "cy"]) == 2


@pytest.mark.parametrize(
    ("values", "allowed", "code"),
    [
        ((1.0, 1.0, 0.999), (), Exit.INCONCLUSIVE),  # suspicious
        ((0.5,), (), Exit.REGRESSION),
        ((0.97,), ("torch",), Exit.INCONCLUSIVE),  # compared though they differ
        ((0.97,), (), Exit.OK),
    ],
)
def test_nothing_else_is_allowed_with_it(
    tmp_path: Path, values: tuple[float, ...], allowed: tuple[str, ...], code: Exit
) -> None:
    base = baselines(tmp_path)
    for seed, value in enumerate(values):
        spec = make_spec("nccl_sync", seed=seed)
        env = {"cores": 2, "torch": "9.9"} if allowed else {"cores": 2, "torch": "2"}
        write_run(tmp_path / "runs", spec, with_eval(spec, value).model_copy(update={"env": env}))
    terms = Terms(today=TODAY, allow_inconclusive=True, allowed=allowed)
    assert judge([tmp_path / "runs"], base, terms).code is code


def test_the_workflow_goes_on_after_a_verdict() -> None:
    import yaml

    file = Path(__file__).resolve().parents[4] / ".github" / "workflows" / "validate.yml"
    steps = yaml.safe_load(file.read_text())["jobs"]["ci"]["steps"]
    runs = [step["run"] for step in steps if "run" in step]
    (place,) = (k for k, step in enumerate(steps) if "bench validate" in step.get("run", ""))
    assert "--allow-inconclusive" in steps[place]["run"]
    assert "--experiment ci" in steps[place]["run"], "a sweep that was killed is no pass"
    assert all(step.get("if", "").startswith("always()") for step in steps[place:])
    assert [word for word in ("rerun", "replay", "report", "compare") if any(f"bench {word}" in run for run in runs)]
