"""What a wheel installs, and that it works beside a project with folders of the same names as ours."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.slow
def test_it_trains_and_judges_beside_folders_of_the_same_names(installed, tmp_path):
    for name in ("models", "conf", "baselines"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')")
        (tmp_path / name / "config.yaml").write_text("not: [ours")
    words = ("model=logistic", "mode=nccl_sync", "world_size=2", "train.epochs=1", "report=false")
    assert "verdict" in python(tmp_path, "-m", "bench", *words, path=installed)
    (file,) = (tmp_path / "runs").rglob("metrics.json")
    assert json.loads(file.read_text())["status"] == "ok"
    shown = python(tmp_path, "-c", "from bench.base import paths; print(paths.CONF, paths.BASELINES)", path=installed)
    assert shown.split() == [str(installed / "bench" / "conf"), str(installed / "bench" / "baselines")]


def test_models_have_one_name():
    with pytest.raises(ImportError, match=r"bench\.models"):
        runpy.run_path(str(ROOT / "models" / "__init__.py"), run_name="models")
