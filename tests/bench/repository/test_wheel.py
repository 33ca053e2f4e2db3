"""What a wheel installs, and that it works beside a project with folders of the same names as ours."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from bench.timeline import FILES
from tests.api.test_tutorial import PAGE, changed

ROOT = Path(__file__).resolve().parents[3]
OWN, EXTEND = ((ROOT / f"docs/how-to/{page}.md").read_text() for page in ("own-model-and-data", "extend"))
SHIPPED = ("bench", "ddp", "hydra_plugins", "models", "conf", "baselines", "pyproject.toml", "README.md", "LICENSE")


def python(folder: Path, *arguments: str, path: Path) -> str:
    """Return what `python <arguments>` prints in `folder`, where packages in `path` come first."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the content of the wheel of this source tree."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    python(source, "-c", "from setuptools.build_meta import build_wheel; build_wheel('dist')", path=source)
    (wheel,) = (source / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(target)
    shutil.copy(wheel, target.parent)
    return target


def test_nothing_but_our_packages_and_the_plug_in_is_at_the_top(installed):
    names = {path.name for path in installed.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"bench", "ddp", "hydra_plugins"}
    assert [path.name for path in (installed / "hydra_plugins").iterdir()] == [
        "elche_bench.py"
    ]  # others' lie beside it


@pytest.mark.parametrize("folder", ["models", "conf", "baselines"])
def test_the_folders_of_the_repository_are_there_whole(installed, folder):
    def files(root: Path) -> set[str]:
        return {str(file.relative_to(root)) for kind in ("py", "yaml", "json") for file in root.rglob(f"*.{kind}")}

    assert files(installed / "bench" / folder) == files(ROOT / folder) != set()


@pytest.mark.parametrize("package", ["bench", "ddp"])
def test_types_are_there_for_who_uses_it(installed, package):
    assert (installed / package / "py.typed").is_file()


@pytest.fixture(scope="module")
def environment(installed, tmp_path_factory) -> Path:
    """An environment of its own with the wheel in it, and what the wheel needs on its path; `my_package` beside it."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    (wheel,) = installed.parent.glob("*.whl")
    into = ("--python", str(place / "bin/python"), "install", "--no-deps", "--no-index", "--quiet", str(wheel))
    python(place, "-m", "pip", *into, path=place)
    (packages,) = place.glob("lib/*/site-packages")
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    (packages / "needed.pth").write_text(str(Path(torch.origin).parents[1]))
    write_package(packages)
    return place


def write_package(folder: Path) -> None:
    """The package of docs/how-to/extend.md, of the code printed there, with its entry points."""
    home = folder / "my_package"
    home.mkdir()
    for code, name in re.findall(r"```python\n(.*?)```\n\n`[\w/]+/(\w+)\.py`", EXTEND, re.DOTALL):
        with (home / f"{name}.py").open("a") as file:  # section and check share a file
            file.write(code.replace('"""', "", 2) if file.tell() else code)
    (home / "memory.py").write_text((home / "memory.py").read_text().replace("No first rank", "# No first rank"))
    (home / "specs.py").write_text(
        "from ddp.backends import SyncKind, BackendSpec\nfrom ddp.engine import EngineSpec\n"
        'TRACED = BackendSpec("my_package.traced", SyncKind.STEP | SyncKind.COLLECTIVE)\n'
        'PROFILED = EngineSpec("my_package.profiled", one_rank=True, one_process=True)\n'
    )
    (home / "__init__.py").write_text("")
    for code, name in zip(re.findall(r"```python\n(.*?)```", OWN, re.DOTALL), ("touches", "touch"), strict=True):
        (home / f"{name}.py").write_text(code)
    points = tomllib.loads(re.findall(r"```toml\n(.*?)```", EXTEND, re.DOTALL)[0])["project"]["entry-points"]
    about = folder / "my_package-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in own.items()) for group, own in points.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def others(tmp_path) -> Path:
    """A folder with folders of our names."""
    for name in ("models", "conf", "baselines", "bench", "ddp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')")
        (tmp_path / name / "config.yaml").write_text("not: [ours")
    return tmp_path


def test_it_composes_a_users_own_parts_beside_folders_of_our_names(environment, others):
    words = (environment / "bin/bench", "mode=traced_periodic", "policy.steps=20", "--cfg", "job")
    done = subprocess.run(words, cwd=others, capture_output=True, text=True, timeout=100, env=bare())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^policy:\n(?:  .*\n)*?  steps: 20$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
def test_it_trains_and_judges_with_them(environment, others):
    (others / "mine.py").write_text("from bench.models.logistic import SETUP")
    words = (
        "model=mine.py",
        "mode=traced_periodic",
        "data.name=digits",
        "train.epochs=1",
        "logger=csv",
        "policy.steps=20",
    )
    done = subprocess.run(
        [environment / "bin/bench", *words], cwd=others, capture_output=True, text=True, timeout=100, env=bare()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict" in done.stdout
    (file,) = (others / "runs").rglob("metrics.json")
    metrics = json.loads(file.read_text())
    assert (metrics["status"], metrics["policy"], metrics["backend"]) == ("ok", "periodic", "traced")
    assert (file.parent / "series.csv").is_file()
    assert sorted(json.loads((file.parent / "config.json").read_text())["code"]) == ["backend", "model", "policy"]
    assert "Memory" in (file.parent / "report.md").read_text()
    show = "from bench.base import paths; print(paths.CONF, paths.BASELINES, paths.OWN_BASELINES)"
    (packages,) = environment.glob("lib/*/site-packages")
    shown = subprocess.run([environment / "bin/python", "-Pc", show], capture_output=True, text=True, env=bare())
    assert shown.stdout.split() == [str(packages / "bench/conf"), str(packages / "bench/baselines"), "baselines"]


SCRIPTS = """
import contextlib, io, json, runpy, sys
from unittest.mock import patch
from bench.command import cli

def script(name, *words):
    sys.argv = [name, *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(name, run_name="__main__")
    return out.getvalue()

def quickly(*words):
    with patch("bench.runner.script.write_report"), patch("bench.timeline.draw"):
        return script(*words)

for seed in range(5):
    quickly("touch.py", "solo", "1", str(seed))
codes = [cli.dispatch(line.split()) for line in BASELINE]
judged = script("touch.py", "nccl_sync", "2", "0")
codes += [cli.dispatch(f"validate runs/touch{more}".split()) for more in ("", " --baseline baselines")]
changed = quickly("changed.py", "solo", "1", "0")
with patch("bench.timeline.draw"):
    example = script("example.py")
print(json.dumps([codes, judged, changed, example]))
"""
"""One process, which imports torch once for all scripts."""


def test_the_tutorial_and_the_example_of_the_readme_go_from_training_to_the_verdict(environment, tmp_path):
    lines = ["propose runs/touch --mode solo", "accept"]
    assert all(f"python -m bench baseline {line}" in PAGE for line in lines)
    assert "python touch.py nccl_sync 2 0" in PAGE
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    smoothed = changed().replace("batch[1])\n\n\ndef acc", "batch[1], label_smoothing=0.1)\n\n\ndef acc")
    for name, text in {"touch": changed(), "changed": smoothed, "example": example}.items():
        (tmp_path / f"{name}.py").write_text(text)
    lines[0] += " --dirty"
    code = SCRIPTS.replace("BASELINE", repr([f"baseline {line}" for line in lines]))
    done = subprocess.run(
        [environment / "bin/python", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=250, env=bare()
    )
    assert (done.returncode, done.stderr) == (0, "")
    codes, judged, refused, trained = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0, 0, 3, 3]  # without a baseline: 4
    assert f"    {judged.splitlines()[0]}\n" in PAGE
    verdicts = re.findall(r"^([A-Z_]+) +touch nccl_sync ×2  (.*?):", judged, re.MULTILINE)
    assert {name for name, _ in verdicts} == {"PASS", "INCONCLUSIVE"}
    assert [check for name, check in verdicts if name == "INCONCLUSIVE"] == ["quality"]
    assert {"ledger", "audit"} <= {check for _, check in verdicts}
    assert re.search(r"REFUSED .*not comparable .*training\.code", refused)
    (sync,), (cadence,) = ([*(tmp_path / "runs/touch" / mode).iterdir()] for mode in ("nccl_sync", "nccl_cadence"))
    assert {path.name for path in sync.iterdir()} >= {*FILES, "report.html", "metrics.json", "audit.json"}
    assert str(cadence.relative_to(tmp_path)) in trained
    assert (cadence / "report.html").is_file()


def bare() -> dict[str, str]:
    """Variables without what leads Python elsewhere."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}


@pytest.mark.timeout(300)  # PyTorch's types are read anew where `make lint` has not left them
def test_a_typed_script_is_clean_under_strict_mypy(environment, tmp_path):
    """It asserts the types of what it gets: where one of ours were `Any`, that would be an error."""
    known, cache = ROOT / ".mypy_cache" / "{}.{}".format(*sys.version_info), tmp_path / "cache"
    if known.is_dir():  # of the same settings
        shutil.copytree(known, cache / known.name)
    script = shutil.copy(ROOT / "tests/bench/repository/typed_script.py", tmp_path)
    settings = ("--config-file", ROOT / "pyproject.toml")  # strict
    options = (*settings, "--python-executable", environment / "bin/python", "--cache-dir", cache)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, script],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, env=bare(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_models_have_one_name():
    with pytest.raises(ImportError, match=r"bench\.models"):
        runpy.run_path(str(ROOT / "models" / "__init__.py"), run_name="models")
