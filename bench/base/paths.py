"""The paths of the harness's files."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent
"""The source tree, or the folder of the installed package."""
CONF = (PACKAGE / "conf").resolve()
"""Hydra's configuration groups; in a source tree a link to the folder `conf` beside `bench`, as for `baselines` and
`models`."""
RUNS = Path("runs")
"""Default output folder, relative to the working directory."""
BASELINES = (PACKAGE / "baselines").resolve()
"""The committed references."""
OWN_FILES = ("*/*-w*-*.json", "expected.yaml")
"""Files by which a folder `baselines` is the user's own folder of them, and not another one of that name."""
HERE = Path("baselines")
"""The user's own baselines, below the working directory."""
MLRUNS = "mlruns"
"""Folder of MLflow's store, beside the runs; it has copies of their files."""
METRICS_SCHEMA = PACKAGE / "metrics.schema.json"
"""JSON schema of `metrics.json`."""


def own_baselines(folder: Path) -> Path:
    """Return where baselines of somebody who works in `folder` are accepted: within a source tree beside the committed
    ones; elsewhere below `folder`, as its runs are no business of the source tree, and the next version of an installed
    package would not have them."""
    return BASELINES if BASELINES.parent == ROOT and folder.is_relative_to(ROOT) else HERE


try:
    OWN_BASELINES = own_baselines(Path.cwd())
except OSError:  # the working directory was removed, or is closed to this user
    OWN_BASELINES = HERE


def searched(name: str) -> bool:
    """Return whether a folder of this name in a tree is searched for runs: hidden ones and MLflow's store are not."""
    return not name.startswith(".") and name != MLRUNS


def judged_by(baselines: Path) -> tuple[Path, ...]:
    """Return the folders or files of baselines that runs are compared with: for the committed ones, outside
    of the source tree, first the user's own. The first with a cell has its baseline."""
    if baselines == BASELINES != OWN_BASELINES and any(any(OWN_BASELINES.glob(kind)) for kind in OWN_FILES):
        return OWN_BASELINES, BASELINES
    return (baselines,)


def experiments(conf: Path, presets: Path | None) -> dict[str, Path]:
    """Return name -> file of the experiments; those in a user's `presets` take precedence."""
    folders = [conf] if presets is None else [conf, presets]
    files = {file.stem: file for folder in folders for file in (folder / "experiment").glob("*.yaml")}
    return dict(sorted(files.items()))
