"""The command where something goes wrong: what is recorded, told once, and left."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from bench.config.overrides import readable
from bench.models import MODELS, mlp
from bench.models.data import DATA, Entry
from bench.results.runfolder import find_runs
from ddp.backends import BACKENDS
from ddp.core.errors import OutOfResources
from ddp.process import termination
from tests.bench import fake_engine
from tests.bench.command.cli_words import SOLO, folders
from tests.bench.report_parts import undrawn as undrawn


def test_a_cell_that_cannot_be_does_not_stop_the_others(quiet, capsys):
    assert quiet("-m", "model=mlp", "mode=solo,nccl_sync", "world_size=2", "train.epochs=1") == 2
    assert [folder.split("/")[1] for folder in folders()] == ["nccl_sync"]
    assert "leave it out" in capsys.readouterr().err


def test_a_failed_cell_does_not_stop_the_others(quiet, monkeypatch, capsys):
    monkeypatch.setenv("BENCH_FAKE", "fail")
    assert quiet("-m", *SOLO, "seed=0,1") == 5
    assert [run.metrics.status for run in find_runs(Path("runs"))[0]] == ["failed", "failed"]
    monkeypatch.delenv("BENCH_FAKE")
    assert quiet("-m", *SOLO, "seed=0,1") == 0, "what failed is not finished"


@pytest.mark.parametrize(
    ("how", "code", "status", "word"),
    [
        ("fail", 5, "failed", "Traceback: the rank's own words"),
        ("lose", 5, "failed", "killed by signal 9"),
        ("diverge", 1, "diverged", "lower train.lr"),
    ],
)
def test_what_goes_wrong_is_recorded_and_told_once(quiet, monkeypatch, capsys, how, code, status, word):
    monkeypatch.setenv("BENCH_FAKE", how)
    assert quiet(*SOLO) == code
    (run,), _ = find_runs(Path("runs"))
    assert run.metrics.status == status
    assert word in (run.path / "training.log").read_text()
    said = capsys.readouterr()
    assert (said.out + said.err).count(word) == 1
    assert "site-packages" not in said.err


def test_a_failed_rerun_leaves_the_finished_run(quiet, monkeypatch):
    quiet(*SOLO)
    monkeypatch.setenv("BENCH_FAKE", "fail")
    quiet(*SOLO)
    assert sorted(run.metrics.status for run in find_runs(Path("runs"))[0]) == ["failed", "ok"]


def test_an_old_failure_is_not_blamed_on_a_healthy_sweep(bench, quiet, monkeypatch, capsys):
    monkeypatch.setenv("BENCH_FAKE", "fail")
    assert quiet(*SOLO, "seed=0") == 5
    monkeypatch.delenv("BENCH_FAKE")
    capsys.readouterr()
    assert bench("-m", *SOLO, "seed=1,2", "report=false") == 0
    assert "others    1 FAIL in 1 place; not of this command: python -m bench validate runs" in capsys.readouterr().out


def test_an_interrupt_ends_run_and_sweep(quiet, monkeypatch):
    monkeypatch.setenv("BENCH_FAKE", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        quiet("-m", *SOLO, "seed=0,1")
    assert [run.metrics.status for run in find_runs(Path("runs"))[0]] == ["killed"]
    assert not list(Path("runs").rglob(".tmp*"))


@pytest.mark.parametrize(
    "words", [SOLO, ("model=mlp", "mode=zero1", "world_size=2", "cluster.restart=always")], ids=len
)
def test_ranks_that_are_lost_after_the_end_was_announced_are_no_failure(quiet, monkeypatch, words):
    """Found on SLURM: a task that was requeued while its ranks were started ended as failed, and was not done again."""
    monkeypatch.setenv("BENCH_FAKE", "told")
    try:
        with pytest.raises(KeyboardInterrupt):
            quiet("-m", *words, "seed=0,1")
    finally:
        termination.withdraw()
    (run,), _ = find_runs(Path("runs"))
    assert run.metrics.status == "killed"
    assert len(fake_engine.runs) == 1, "neither again nor the next one"


def test_a_fork_server_that_is_told_as_well_is_no_failure(quiet, monkeypatch):
    def gone(*parts: object, **more: object) -> None:
        termination.announce()
        raise OutOfResources("the fork server cannot be started: it is gone")

    monkeypatch.setattr("bench.command.run.make_plan", gone)
    try:
        with pytest.raises(KeyboardInterrupt):
            quiet(*SOLO)
    finally:
        termination.withdraw()


def test_a_defect_of_ours_leaves_no_half_folder(quiet, monkeypatch):
    monkeypatch.setenv("BENCH_FAKE", "bug")
    with pytest.raises(AssertionError, match="ours"):
        quiet(*SOLO)
    assert folders() == []
    assert not list(Path("runs").rglob("*.json*"))


@pytest.mark.parametrize("verb", [["report"], ["validate"], ["baseline", "propose"]], ids=" ".join)
def test_a_folder_without_runs_is_told(bench, capsys, verb, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a, ü").mkdir()
    for path in ("empty", "missing", "a, ü"):
        assert bench(*verb, path) == 2
        said = capsys.readouterr().err
        assert path in said
        if path != "missing":
            words = shlex.split(said.rpartition("; make one: ")[2])
            assert readable(words[-1]) == words[-1] == (f"output={path}" if path == "empty" else f"output='{path}'")
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["validate", "runs", "--baseline", "nosuch"], "argument --baseline: nosuch: no such file or folder"),
        (["report", "runs", "--baseline", "nosuch"], "argument --baseline: nosuch: no such file or folder"),
        (["baseline", "audit", "nosuch"], "argument path: nosuch: no such file or folder"),
        (["baseline", "audit", "docs"], "docs: no baselines; name their folder, or make some"),
        (["baseline", "diff", "docs", "docs"], "docs: no baselines; name their folder, or make some"),
        (["validate", "runs", "--junit", "docs"], "argument --junit: docs is a folder; give a file"),
        (["validate", "runs", "--junit", "docs/notes/x.xml"], "cannot write --junit docs/notes/x.xml: File exists"),
        (["validate", ""], "argument path: it is empty; give a path"),
        (["report", "runs", "--out", ""], "argument --out: it is empty; give a path"),
    ],
    ids=" ".join,
)
def test_a_path_that_is_wrong_is_named_with_its_argument(quiet, bench, capsys, words, told):
    quiet(*SOLO)
    Path("docs").mkdir()
    Path("docs/notes").write_text("mine")
    capsys.readouterr()
    assert bench(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("bench: ")
    assert told in said
    assert len(said.splitlines()) == 1


def test_folders_that_cannot_be_read_are_damaged_and_not_missing(bench, quiet, capsys):
    quiet(*SOLO)
    folder = find_runs(Path("runs"))[0][0].path
    (folder / "metrics.json").write_text("{")
    capsys.readouterr()
    for verb in ("validate", "report"):
        assert bench(verb, "runs") == 4
        said = "".join(capsys.readouterr())
        assert f"{folder}/metrics.json: not JSON" in said
        assert "make one" not in said
    assert not Path("reports").exists()


def test_what_was_killed_is_named_with_the_way_to_go_on(bench, capsys):
    for name in (".tmp-w1-s0-abc-999999999", ".tmp-w1-s1-abc-999999999"):
        (Path("sw 2/mlp/solo") / name / "checkpoints" / "00001").mkdir(parents=True)
    for words in (["validate", "sw 2"], ["report", "sw 2"], ["baseline", "propose", "sw 2"]):
        assert bench(*words) == 2
        said = capsys.readouterr().err
        assert "sw 2/mlp/solo/w1-s0-abc was killed, as were 1 more; go on with it: python -m bench " in said
        (word,) = shlex.split(said)[-1:]
        assert word.startswith("resume=")
    shutil.rmtree("sw 2/mlp/solo/.tmp-w1-s1-abc-999999999")
    making = Path(f"sw 2/mlp/solo/.tmp-w1-s2-abc-{os.getpid()}")
    making.mkdir()
    (making / "events.jsonl").write_text("")
    assert bench("validate", "sw 2") == 2
    assert f"w1-s2-abc is still going on, in process {os.getpid()}; wait for it" in capsys.readouterr().err


def test_a_corrupt_result_does_not_stop_the_report(bench, quiet, undrawn, capsys):
    quiet("-m", *SOLO, "seed=0,1")
    (find_runs(Path("runs"))[0][0].path / "metrics.json").write_text("{")
    assert bench("report", "runs") == 0
    assert "not JSON" in capsys.readouterr().err


def test_an_output_that_cannot_be_is_one_line(quiet, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert quiet(*SOLO, "output=file") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_run_that_cannot_be_put_into_place_is_kept_and_named(quiet, monkeypatch, capsys):
    def refuse(source, destination, spared=None):
        raise PermissionError(13, "Permission denied", str(destination))

    monkeypatch.setattr("bench.results.writer._replace", refuse)
    assert quiet(*SOLO) == 5
    (folder,) = Path("runs/mlp/solo").iterdir()
    assert {"metrics.json", "events.jsonl", "timeline.json"} <= {path.name for path in folder.iterdir()}
    said = capsys.readouterr().err
    assert str(folder) in said
    assert "cannot be put into place: Permission denied" in said
    assert len(said.splitlines()) == 1


def test_a_missing_data_set_is_one_line_and_no_folder(quiet, monkeypatch, capsys):
    from bench.models.data import mnist

    def refuse(folder: str, options: object) -> None:
        raise ValueError(f"data set mnist is not in {folder}")

    monkeypatch.setattr(mnist, "ORIGIN", replace(mnist.ORIGIN, prepare=refuse))
    assert quiet(*SOLO, "data.name=mnist") == 2
    assert capsys.readouterr().err == "bench: data set mnist is not in data\n"
    assert not Path("runs").exists()


@pytest.fixture
def own_choices():
    """Models that are registered in a test are forgotten after it, by Hydra too."""
    yield
    known = ConfigStore.instance().repo["model"]
    for name in {name.removesuffix(".yaml") for name in known} - set(MODELS):
        del known[f"{name}.yaml"]


@pytest.mark.usefixtures("own_choices")
def test_a_broken_entry_takes_no_other_down(bench, quiet, capsys, tmp_path, monkeypatch):
    (tmp_path / "touch2.py").write_text('"""`touch2`: raises."""\n\nraise ValueError("no way\\nat all")\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    for registry, entry in ((MODELS, "touch2"), (DATA, Entry("touch2"))):
        monkeypatch.setitem(registry, "touch2", entry)
    monkeypatch.setitem(MODELS, "nowhere", "bench.models.nowhere")
    wrong = "model touch2: touch2.py:3: ValueError: no way"

    assert bench("model=touch2", "mode=nccl_sync") == 2
    assert capsys.readouterr().err == f"bench: {wrong}\n"
    assert quiet("-m", "model=touch2,mlp", "mode=solo", "train.epochs=1") == 2
    assert wrong in capsys.readouterr().err
    assert [folder.split("/")[0] for folder in folders()] == ["mlp"]
    assert bench("plan", "-m", "model=touch2,mlp", "mode=solo") == 2
    said = capsys.readouterr().out
    assert f"impossible: {wrong}" in said
    assert "planned: 1 run of 1 cell" in said
    assert bench("list", "recipes") == 0
    said = capsys.readouterr().out
    assert f"cannot be used: {wrong}" in said
    assert "mlp: quick" in said
    assert bench("list") == 0
    said = capsys.readouterr().out
    assert "cannot be used: model nowhere: it is registered as module bench.models.nowhere, and there is none" in said
    assert "smoke" in said
    assert bench("doctor") == 0
    assert "touch2" not in capsys.readouterr().out, "it is of this machine, and runs nobody's own code"


@pytest.mark.usefixtures("own_choices")
def test_a_model_that_cannot_be_built_names_its_line(bench, capsys, tmp_path, monkeypatch):
    source = Path(mlp.__file__).read_text().replace("nn.Linear(", "nn.Liner(")
    (tmp_path / "touch3.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(MODELS, "touch3", "touch3")
    line = 1 + next(number for number, text in enumerate(source.splitlines()) if "nn.Liner(" in text)
    assert bench("model=touch3", "mode=nccl_sync") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bench: model touch3: touch3.py:{line}: AttributeError: ")
    assert len(said.splitlines()) == 1


@pytest.mark.usefixtures("own_choices")
def test_a_mode_of_a_broken_backend_says_what_is_wrong_with_that(bench, capsys, monkeypatch):
    monkeypatch.setitem(BACKENDS.complete().broken, "half", ("my_package.specs:HALF", ImportError("no such name")))
    for words in (("mode=half_cadence",), ("mode=half",), ("backend=half", "policy=sync")):
        assert bench("model=mlp", *words) == 2
        assert capsys.readouterr().err.startswith("bench: backend half: ")
    assert bench("model=mlp", "mode=halfway_cadence") == 2
    assert "unknown mode" in capsys.readouterr().err
