"""Speeds against a baseline that keeps time: from the proposal to the verdict."""

from __future__ import annotations

from datetime import date
from itertools import cycle
from pathlib import Path

import pytest

from bench.base.environment import BUSY
from bench.base.exitcodes import Exit
from bench.validate import Terms, judge
from bench.validate.revisions.propose import SLOWER
from bench.validate.revisions.revision import accept, write_proposals
from tests.bench.references import TODAY, TWENTY, one, with_eval
from tests.bench.streams import make_spec, write_run

ENV = {"cpu": "Some CPU", "cores": 2, "torch": "2.13.0", "gpus": []}
QUIET = (1000.0, 1004.0, 996.0, 1002.0, 998.0)


def timed(root: Path, speeds: tuple[float | None, ...], **changes: object) -> Path:
    """Runs of one cell at these speeds, all of the same quality."""
    for seed, (speed, quality) in enumerate(zip(speeds, cycle(TWENTY), strict=False)):
        spec = make_spec("nccl_cadence", seed=seed)
        metrics = with_eval(spec, quality)
        throughput = metrics.throughput.model_copy(update={"samples_per_s": speed})
        write_run(root, spec, metrics.model_copy(update={"env": ENV, "throughput": throughput} | changes))
    return root


def kept(folder: Path, speeds: tuple[float, ...] = QUIET, slower: float = SLOWER) -> Path:
    """Accepted baselines with time."""
    write_proposals(timed(folder / "runs", speeds), folder / "proposals", TODAY, slower=slower)
    accept(folder / "proposals", folder / "baselines")
    return folder / "baselines"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept(tmp_path_factory.mktemp("quiet"), QUIET * 4)


@pytest.mark.parametrize(
    ("speeds", "name", "why"),
    [
        ((1000.0, 998.0, 1003.0), "PASS", "not inferior"),
        ((970.0, 975.0, 972.0), "PASS", "worse by 2.8%"),
        ((850.0, 855.0, 852.0), "FAIL", "inferiority proved (if solo is slower by as much"),
        ((1000.0,), "INCONCLUSIVE", "2 more seeds needed"),
        ((1300.0, 1310.0, 1305.0), "PASS", "propose a new baseline to keep it"),
        ((1000.0, None, 1000.0), "INCONCLUSIVE", "a run has no measured speed"),
        ((1000.0, 600.0, 1100.0), "INCONCLUSIVE", "not shown yet: 2 more seeds needed"),
        ((1000.0, 600.0, 1100.0, 700.0, 1000.0, 900.0, 650.0, 1100.0), "INCONCLUSIVE", "too much noise"),
    ],
)
def test_speed(tmp_path: Path, base: Path, speeds: tuple[float | None, ...], name: str, why: str) -> None:
    """On a noisy machine a verdict is inconclusive, whatever the last look says; faster is no reason to stop."""
    verdict = one(timed(tmp_path, speeds), base, "speed")
    assert (verdict.name, why in verdict.line) == (name, True), verdict
    if None not in speeds:
        assert "margin 10.0% (the same samples may take 10 % longer)" in verdict.line


def test_a_gate_can_be_of_speed_alone(tmp_path: Path, base: Path) -> None:
    """Quality of the same runs is held against another folder of baselines; a run that failed is no pass all the same."""
    runs = timed(tmp_path, (1000.0, 998.0, 1003.0))
    judged = judge([runs], base, Terms(today=TODAY, only=("speed",)))
    names = [(verdict.check, verdict.name) for verdict in judged.verdicts]
    assert names == [("status", "PASS"), ("diverged", "PASS"), ("speed", "PASS")]
    timed(tmp_path, (1000.0,), status="failed")
    assert judge([runs], base, Terms(today=TODAY, only=("speed",))).code is Exit.FAILED
    with pytest.raises(ValueError, match="did you mean 'speed'"):
        judge([runs], base, Terms(only=("sped",)))


def test_a_noisy_baseline_does_not_allow_more(tmp_path: Path) -> None:
    noisy = kept(tmp_path, (1000.0, 700.0, 1300.0, 900.0, 1100.0) * 4)
    runs = timed(tmp_path / "slow", (800.0, 805.0, 795.0))
    verdict = one(runs, noisy, "speed")
    assert (verdict.name, "margin 10.0%" in verdict.line) == ("INCONCLUSIVE", True)
    eight = timed(tmp_path / "slow", (800.0, 805.0, 795.0, 790.0, 810.0, 795.0, 800.0, 805.0))
    assert one(eight, noisy, "speed").name == "INCONCLUSIVE", "no speed fails for not being shown"


def test_the_margin_is_what_was_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bench.command import cli

    proposals, base = str(tmp_path / "proposals"), tmp_path / "base"
    words = ["baseline", "propose", str(timed(tmp_path / "runs", QUIET)), "--out", proposals, "--baseline", str(base)]
    assert cli.dispatch([*words, "--slower", "25"]) == Exit.USAGE
    assert cli.dispatch([*words, "--time", "--slower", "25"]) == Exit.OK
    assert "the same samples may take 25 % longer" in capsys.readouterr().out
    assert cli.dispatch(["baseline", "accept", proposals, "--baseline", str(base)]) == Exit.OK
    assert one(timed(tmp_path / "slow", (850.0, 855.0, 852.0)), base, "speed").name == "PASS"
    with pytest.raises(ValueError, match="0 % slower is no margin"):
        kept(tmp_path / "none", slower=0)


def test_speeds_of_another_machine_are_refused_whichever_seed_was_there(tmp_path: Path, base: Path) -> None:
    timed(tmp_path, (1000.0, 1000.0))
    spec = make_spec("nccl_cadence", seed=2)
    write_run(tmp_path, spec, with_eval(spec, 0.974).model_copy(update={"env": ENV | {"cpu": "Other", "cores": 64}}))
    verdict = one(tmp_path, base, "speed")
    assert (verdict.name, verdict.exit_code) == ("REFUSED", Exit.REFUSED)
    assert [field.field for field in verdict.fields] == ["env.cpu", "env.cores"]
    assert one(tmp_path, base).name == "PASS", "quality is compared all the same"
    allowed = one(tmp_path, base, "speed", allowed=("cpu", "env.cores"))
    assert (allowed.name, "speeds are not compared" in allowed.line) == ("INCONCLUSIVE", True)
    footer = judge([tmp_path], base, Terms(today=TODAY, allowed=("cpu", "env.cores"))).footer
    assert footer[-1] == "allowed to differ: cpu, env.cores"


def test_what_a_baseline_does_not_tell_of_its_machine_is_no_difference(tmp_path: Path, base: Path) -> None:
    """One that was made before vector instructions were recorded."""
    assert one(timed(tmp_path, QUIET, env=ENV | {"simd": "avx2"}), base, "speed").name == "PASS"


def test_runs_that_shared_their_cores_say_nothing_of_speed(tmp_path: Path, base: Path) -> None:
    warned = [f"{BUSY} 1.7 of 2 cores during the run: its speeds are too low"]
    verdict = one(timed(tmp_path, (500.0, 510.0, 505.0), warnings=warned), base, "speed")
    assert (verdict.name, "during seeds 0, 1, 2" in verdict.line) == ("INCONCLUSIVE", True)
    assert one(tmp_path, base).name == "PASS"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"warnings": [f"{BUSY} 1.7 of 2 cores"]}, r"other programs used the cores during seeds \[0, 1, 2, 3, 4\]"),
        ({"env": {"torch": "2.13.0", "gpus": []}}, "did not record cpu, cores of their machine"),
    ],
)
def test_no_time_is_kept_of_runs_that_have_none(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    runs = timed(tmp_path / "runs", QUIET, **changes)
    with pytest.raises(ValueError, match=why):
        write_proposals(runs, tmp_path / "proposals", TODAY, slower=SLOWER)
    write_proposals(runs, tmp_path / "proposals", TODAY)


def test_no_time_is_kept_of_two_machines(tmp_path: Path) -> None:
    timed(tmp_path / "runs", QUIET)
    spec = make_spec("nccl_cadence", seed=5)
    write_run(tmp_path / "runs", spec, with_eval(spec, 0.974).model_copy(update={"env": ENV | {"cores": 4}}))
    with pytest.raises(ValueError, match=r"speeds of two machines: env.cores 2 and 4"):
        write_proposals(tmp_path / "runs", tmp_path / "proposals", TODAY, slower=SLOWER)


def test_time_expires_sooner(tmp_path: Path, base: Path) -> None:
    runs = timed(tmp_path, QUIET)
    judged = judge([runs], base, Terms(today=date(2027, 1, 30)))
    assert {verdict.check for verdict in judged.verdicts if verdict.name == "EXPIRED"} == {"baseline"}
