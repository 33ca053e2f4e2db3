"""What users of Hydra expect of a command: search paths, completion, a help that says what each key means."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from bench.command.printed.summary import Summary, show_search
from bench.config.compose import composing
from bench.config.composed import typed
from bench.config.hydra_errors import PRESETS, known_keys
from bench.config.key_docs import key_docs
from bench.config.objective import direction, objective
from bench.results.planned import planned
from bench.results.runfolder import find_runs, read_object
from tests.bench.conftest import Bench
from tests.bench.report_parts import undrawn as undrawn
from tests.bench.streams import make_spec, write_run
from tests.warm import ROOT

MINE = "# @package _global_\ndefaults: [override /model: mlp, override /mode: solo]\ntrain: {epochs: 1}\n"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with an experiment of the user's."""
    (tmp_path / "own/experiment").mkdir(parents=True)
    (tmp_path / "own/experiment/mine.yaml").write_text(MINE)
    return tmp_path / "own"


@pytest.mark.parametrize("way", ["--config-dir={}", "-cd {}", "hydra.searchpath=[file://{}]"])
def test_presets_of_the_users_own_folder(bench: Bench, own: Path, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("plan", *way.format(own).split(), "experiment=mine", "-m", "seed=0,1") == 0
    assert "planned: 2 runs of 1 cell" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["experiment=mine", "+recipes=mine"])
def test_a_users_preset_that_is_a_sweep_by_itself(
    bench: Bench, own: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = "hydra: {mode: MULTIRUN, sweeper: {params: {seed: '0,1'}}}\n"
    (own / "experiment/mine.yaml").write_text(MINE + sweep)
    (own / "recipes").mkdir()
    (own / "recipes/mine.yaml").write_text("# @package _global_\n" + sweep)
    assert bench("plan", "-cd", str(own), "model=mlp", "mode=solo", word) == 0
    assert "planned: 2 runs of 1 cell" in capsys.readouterr().out


def test_several_experiments_are_swept_unless_one_is_a_sweep_by_itself(
    bench: Bench, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their sweeps were left out without a word."""
    (own / "experiment/other.yaml").write_text(MINE.replace("mlp", "lenet"))
    for verb in ([], ["plan"]):
        for words in (["experiment=smoke,mine"], ["-m", "experiment=mine,ci"]):
            assert bench(*verb, "-cd", str(own), *words) == 2
            assert "is a sweep of its own: give each its own command, without -m" in capsys.readouterr().err
    assert bench("plan", "-cd", str(own), "-m", "experiment=mine,other") == 0
    assert "planned: 2 runs of 2 cells" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["model=[mlp,lenet]", "mode=[solo,nccl_cadence]", "experiment=[ci,smoke]"])
def test_a_list_in_brackets_is_no_sweep(bench: Bench, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The last of it was taken."""
    for verb in ([], ["plan"]):
        assert bench(*verb, word) == 2
        assert "=[...] chooses several at once: leave out the brackets" in capsys.readouterr().err


def test_a_preset_chooses_one_of_each_group(bench: Bench, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "experiment/mine.yaml").write_text(MINE.replace("model: mlp", "model: [mlp, lenet]"))
    for verb in ([], ["plan"]):
        assert bench(*verb, "-cd", str(own), "experiment=mine") == 2
        assert "model=[...] chooses several at once" in "".join(capsys.readouterr())


def test_a_sweeper_is_chosen_on_the_command_line(bench: Bench, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a preset Hydra leaves it out without a word."""
    sweep = "hydra: {mode: MULTIRUN, sweeper: {params: {seed: '0,1'}}}\n"
    preset = (own / "experiment/mine.yaml").read_text().replace("[", "[override /hydra/sweeper: basic, ")
    (own / "experiment/mine.yaml").write_text(preset + sweep)
    assert bench("plan", "-cd", str(own), "experiment=mine") == 2
    err = capsys.readouterr().err
    assert err == "bench: no preset can choose the sweeper: give hydra/sweeper=basic on the command line\n"
    assert bench("plan", "-cd", str(own), "experiment=mine", "hydra/sweeper=bench") == 0
    (own / "experiment/outer.yaml").write_text("# @package _global_\ndefaults: [mine]\nhydra: {mode: MULTIRUN}\n")
    assert bench("plan", "-cd", str(own), "experiment=outer", "seed=0,1") == 2
    assert capsys.readouterr().err == err


@pytest.mark.usefixtures("undrawn")
def test_experiments_of_the_users_own_folder_are_known(
    bench: Bench, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("list", "experiments", "--config-dir", str(own)) == 0
    assert "mine" in capsys.readouterr().out
    plan = planned(tmp_path, "mine", presets=own)
    assert plan is not None
    assert [(point.model, point.mode) for point in plan.points] == [("mlp", "solo")]
    write_run(tmp_path / "runs", make_spec("solo", seed=5))
    words = ["--config-dir", str(own), "--experiment", "mine"]
    assert bench("validate", str(tmp_path / "runs"), *words, "--only", "status") == 4  # no baseline
    assert f"python -m bench --config-dir {own} experiment=mine" in capsys.readouterr().out
    assert bench("report", str(tmp_path / "runs"), *words, "--out", str(tmp_path / "out")) == 0
    assert "Experiment *mine* plans 1 run" in (tmp_path / "out/report.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-cd", "nowhere"], "nowhere' not found"),
        (["hydra.searchpath=[file:///nowhere]"], "no folder /nowhere; write file:///the/folder"),
        (["hydra.searchpath=[nowhere]"], "nowhere has no scheme"),
    ],
)
def test_a_search_path_that_is_not_there(
    bench: Bench, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("model=mlp", *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "completion"),
    [("bench model=ml", "model=mlp"), ("bench train.ep", "train.epochs="), ("bench mod", "mode=")],
)
def test_bash_completes_keys_and_members(
    bench: Bench, line: str, completion: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert bench("-sc", "query=bash") == 0
    assert completion in capsys.readouterr().out.split()


def test_what_bash_gets_is_a_script_for_the_command(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("-sc", "install=bash") == 0
    script = capsys.readouterr().out
    assert script.rstrip().endswith("hydra_bash_completion bench")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_the_help_says_what_each_key_means(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    docs = {doc.key: doc for doc in key_docs()}
    assert known_keys() - set(PRESETS) == docs.keys()
    assert [key for key, doc in docs.items() if len(doc.text.split()) < 3 or not doc.text.endswith(".")] == []
    assert docs["cluster.deadline_s"].text.startswith("Seconds ")
    assert bench("--help") == 0
    page = capsys.readouterr().out
    assert all(f"\n{key}=" in page for key in docs)
    assert "engine=elche  (name)" in page
    assert "policy.guard=level  (text)\n" in page


def test_help_imports_neither_torch_nor_plug_ins(tmp_path: Path) -> None:
    code = "import sys; from bench.command.cli import dispatch; dispatch(['--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1]
    unneeded = ("torch", "pandas", "matplotlib", "optuna", "hydra_plugins", "hydra", "tabulate", "psutil")
    assert not [name for name in unneeded if f"'{name}'" in modules]


@pytest.mark.parametrize(
    ("name", "value", "of_a_failed_one", "way"),
    [
        ("metric", 0.9, -inf, "maximize"),
        ("samples_per_s", 100.0, -inf, "maximize"),
        ("time_to_target", 2.5, inf, "minimize"),
    ],
)
def test_what_a_search_goes_by(name: str, value: float, of_a_failed_one: float, way: str) -> None:
    final, target = SimpleNamespace(eval=0.9, higher_is_better=True), SimpleNamespace(reached=True, seconds=2.5)
    run = SimpleNamespace(status="ok", final=final, target=target, throughput=SimpleNamespace(samples_per_s=100.0))
    assert objective(name, run) == value
    run.status = "failed"
    assert objective(name, run) == of_a_failed_one
    sweeper = {"sweeper": {"direction": "?", "params": None}}
    composed = OmegaConf.create({"objective": name, "model": {"name": "mlp"}, "hydra": sweeper})
    assert direction(composed, ()) == [f"hydra.sweeper.direction={way}"]


def test_the_best_of_a_search_that_found_nothing_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """It named a run that never ran."""
    for value, said in ((inf, "no run has the objective"), (0.5, "train.lr=3  (0.5)")):
        show_search(Summary(Console()), {"name": "optuna", "best_params": {"train.lr": 3}, "best_value": value})
        out = capsys.readouterr().out
        assert said in out
        assert ("train.lr" in out) == (value == 0.5)


def test_a_run_that_never_got_to_its_target_is_the_worst() -> None:
    run = SimpleNamespace(status="ok", target=SimpleNamespace(reached=False, seconds=None), final=None)
    assert objective("time_to_target", run) == inf


def test_a_new_process_finds_presets_of_the_users_own_folder(own: Path, tmp_path: Path) -> None:
    """Hydra's finder executes its plug-ins again, the first time."""
    code = (
        "from bench.results.planned import planned\nfrom pathlib import Path\n"
        f"print([point.mode for point in planned(Path({str(tmp_path)!r}), 'mine', presets=Path({str(own)!r})).points])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "['solo']\n", done.stderr


@pytest.mark.parametrize("name", ["lenet", "lenet,logistic"])
@pytest.mark.parametrize("verb", [(), ("plan",)])
def test_a_model_that_a_preset_replaces_is_a_mistake(
    quiet: Bench, own: Path, name: str, verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The preset's was trained, without a word."""
    (own / "experiment/mine.yaml").write_text("# @package _global_\nmodel: {name: mlp}\ntrain: {epochs: 1}\n")
    words = (*verb, "-cd", str(own), *(["-m"] if "," in name else []), "experiment=mine")
    assert quiet(*words, f"model={name}") == 2
    said = "".join(capsys.readouterr())
    first = name.partition(",")[0]
    assert f"model={first} has no effect, as a preset, or another word, sets model.name=mlp" in said
    assert f": write model.name={first} instead" in said
    assert not list(Path("runs").glob("*/*"))
    assert quiet(*words, f"model.name={name}") == 0
    assert quiet(*words, "model=lenet", "model=mlp") == 0


@pytest.mark.parametrize("name", ["lesson", "needle_memory", "needle_scaling", "xtrain"])
def test_a_model_of_the_command_line_is_that_of_a_shipped_experiment(name: str) -> None:
    with composing() as composed:
        assert composed([f"experiment={name}", "model=lenet"]).model.name == "lenet"
        assert composed([f"experiment={name}"]).model.name in ("mlp", "resnet34", "gpt_nano")


def test_the_home_folder_is_named_in_an_experiment_as_on_the_command_line(
    quiet: Bench, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder called `~` was made in the current one."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    body = "output: ~/runs\ndata: {name: digits, dir: ~/data}\n"
    (own / "experiment/mine.yaml").write_text(MINE + body)
    assert quiet("-cd", str(own), "experiment=mine") == 0
    (run,), _ = find_runs(tmp_path / "me/runs")
    assert read_object(run.path / "config.json")["data"]["dir"] == f"{tmp_path}/me/data"
    assert not Path("~").exists()
    plan = planned(tmp_path / "me/runs", None, presets=own)
    assert plan is not None
    assert plan.experiment == "mine"
    with composing(folder=str(own)) as composed:
        config = typed(composed(["experiment=mine", "resume='~/a'", "data.path='~/b'", "output='./~/c'"]))
    assert (config.resume, config.data.path, config.output) == (f"{tmp_path}/me/a", f"{tmp_path}/me/b", "./~/c")
