"""A run folder that somebody else made: whatever lies there in the place of a file, every command ends, and names it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import bench as api
from bench.results.runfolder import CONFIG, EVENTS, GRAPH, METRICS
from ddp.checkpoint import checkpoint
from ddp.core.messages.events import Saved
from ddp.process.codec import encode
from tests import strange
from tests.bench.conftest import Bench, faked
from tests.held_back import held_back
from tests.runtime.checkpoints.kept_job import make
from tests.slow import every, slow
from tests.spread import WHOLE

pytestmark = pytest.mark.timeout(300)
LOG, TRACE, PICTURE, SLICES, PROFILE = "training.log", "timeline.json", "timeline.png", "slices-0.jsonl", "torch-0.json"
READ = (METRICS, CONFIG, EVENTS, GRAPH, SLICES)
OTHERS = (LOG, TRACE, PICTURE, "timeline.html", "timeline.csv", PROFILE)
PARTS = (checkpoint.MANIFEST, checkpoint.MODEL, "rank-0.pt")
RESUMED = (METRICS, CONFIG, EVENTS, *PARTS)
SEEDS = range(len(strange.KINDS) + 1)
Damaged = Callable[..., dict[str, Path]]
CELL = Path("runs/mlp/nccl_cadence")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a run for each kind of thing, and one more."""
    folder = tmp_path_factory.mktemp("grown")
    with pytest.MonkeyPatch.context() as patch:
        bench = faked(patch, folder)
        patch.setattr("bench.timeline.draw", lambda stream, spec, path: path.write_bytes(b"PNG"))
        seeds = ",".join(map(str, SEEDS))
        words = ("model=mlp", "mode=nccl_cadence", "world_size=2", "train.epochs=1", f"seed={seeds}")
        assert bench("-m", *words, "report=false", "validate=false") == 0
    return folder / "runs"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint."""
    return make(tmp_path_factory.mktemp("made"))[1]


@pytest.fixture
def damaged(bench: Bench, runs: Path, tmp_path: Path) -> Damaged:
    """Puts a copy of the tree here, in which `names` are something strange in every run but the last; kind -> run folder."""

    def damage(*names: str) -> dict[str, Path]:
        shutil.copytree(runs, tmp_path / "runs")
        folders = sorted(CELL.iterdir())
        assert len(folders) == len(SEEDS)
        for kind, folder in zip(strange.KINDS, folders, strict=False):
            for name in names:
                strange.put(kind, folder / name)
        return dict(zip(strange.KINDS, folders, strict=False))

    return damage


@pytest.mark.parametrize("name", [*READ, "others"])
def test_trees(damaged: Damaged, bench: Bench, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """`validate`, `baseline propose`, `dashboard export` and `load` over a tree of such runs."""
    places = damaged(*(OTHERS if name == "others" else [name]))
    named = {kind: f"{folder / name}: " for kind, folder in places.items()}
    with held_back():
        code = bench("validate", "runs")
        told = capsys.readouterr().out
        proposed = bench("baseline", "propose", "runs", "--dirty")
        why = capsys.readouterr().err
        assert bench("dashboard", "export", "runs") == 0
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            frames = {what: api.load("runs", what) for what in ("runs", "events")}
    judged = name in (METRICS, CONFIG, EVENTS)
    assert code == 4  # there is no baseline either way
    assert told.count(" readable: ") == (len(places) if judged else 0)
    assert proposed == 2  # without an accuracy there is no baseline either
    assert any(line in why for line in named.values()) is judged
    page = Path("dashboard.html").read_text()
    loaded = " ".join(str(one.message) for one in warned)
    for kind, line in named.items():
        assert (line in told) is judged
        assert (line in page and kind in page) is (name in READ)
        assert (line in loaded) is judged
    assert len(frames["runs"]) == (1 if name in (METRICS, CONFIG) else len(SEEDS))


@pytest.mark.parametrize("name", [METRICS, EVENTS, *slow(PICTURE)])
def test_report(damaged: Damaged, bench: Bench, capsys: pytest.CaptureFixture[str], name: str) -> None:
    places = damaged(name)
    with held_back():
        if name == PICTURE:  # which a report on one run shows
            for kind, folder in places.items():
                for out in ("reports/one", str(folder)):
                    assert bench("report", str(folder), "--out", out) == 0
                    assert kind in (Path(out) / "report.md").read_text()
            return
        assert bench("report", "runs") == 0
    told = capsys.readouterr().err
    report = Path("reports/runs/report.md").read_text()
    for kind, folder in places.items():
        assert (f"{folder / name}: " in told) is (name == METRICS)
        assert kind in report


@pytest.mark.parametrize("name", [METRICS, CONFIG, EVENTS])
@pytest.mark.parametrize("verb", ["rerun", "replay"])
def test_once_more(damaged: Damaged, bench: Bench, capsys: pytest.CaptureFixture[str], verb: str, name: str) -> None:
    for kind, folder in damaged(name).items():
        with held_back():
            code = bench(verb, str(folder))
        told = capsys.readouterr()
        if name == EVENTS:
            assert code == 4
            assert f"REFUSED    {folder / name}: " in told.out
            assert kind in told.out
        else:
            assert code == 2
            assert f"bench: {folder / name}: " in told.err
            assert kind in told.err


@pytest.mark.parametrize("name", every(2, [*READ, *OTHERS]))
def test_timeline(damaged: Damaged, bench: Bench, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """What it reads must be there; what it writes is replaced, but for a folder."""
    turn = [*READ, *OTHERS].index(name)
    for number, (kind, folder) in enumerate(damaged(name).items()):
        if (number + turn) % 2 and name in OTHERS and kind != "a folder" and not WHOLE:
            continue  # nobody reads it
        with held_back():
            code = bench("timeline", str(folder))
        told = capsys.readouterr().err
        in_the_way = kind == "a folder" and name.startswith("timeline.")
        assert code == (2 if name in (CONFIG, EVENTS, SLICES) or in_the_way else 0), (kind, told)
        assert told.count("\n") == (1 if code else 0)
        if code and not in_the_way:
            assert f"{(folder / name).absolute()}: " in told
            assert kind in told


@pytest.mark.parametrize("name", every(2, RESUMED))
def test_resume(
    damaged: Damaged,
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    kept: Path,
    name: str,
) -> None:
    """A run that failed, with a checkpoint."""
    place = f"checkpoints/{kept.name}/{name}" if name in PARTS else name
    for folder in damaged(name).values():
        for path in (folder / METRICS, folder / name) if name in PARTS else (folder / METRICS,):
            path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        shutil.copytree(kept, folder / "checkpoints" / kept.name)
        if name == CONFIG:  # which is read once the records tell of the checkpoint
            saved = (encode(Saved(1.0, rank, int(kept.name), ())) for rank in range(2))
            (folder / EVENTS).write_bytes(b"".join(line + b"\n" for line in saved))
    turn = RESUMED.index(name) % 2
    for number, (kind, folder) in enumerate(zip(strange.KINDS, sorted(CELL.iterdir()), strict=False)):
        if number % 2 != turn and not WHOLE:
            continue
        strange.put(kind, folder / place)
        with held_back():
            assert bench(f"resume={folder}", "report=false", "validate=false") == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        why = (
            "torn" if kind in ("too large", "Permission denied") and name.endswith(".pt") else kind
        )  # it has another size than the manifest says
        assert (why in told and f"{(folder / place).absolute()}: " in told) is (name != METRICS)


@pytest.mark.parametrize("name", [METRICS, *slow(CONFIG)])
def test_a_sweep_trains_such_cells_anew(
    damaged: Damaged, bench: Bench, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """As with every damaged run; one that may not be read is no damaged one, and stays."""
    damaged(name)
    seeds = ",".join(map(str, SEEDS))
    words = ("-m", "model=mlp", "mode=nccl_cadence", "world_size=2", "train.epochs=1", f"seed={seeds}")
    with held_back():
        assert bench("plan", *words) == 2
        told = capsys.readouterr()
        assert "Permission denied; whether that run is finished cannot be told" in told.out
        assert "1 finished, 5 to train" in told.out
        assert bench(*words, "report=false", "validate=false") == 2
    said = capsys.readouterr()
    assert said.out.count("finished before, skipped") == 1
    assert said.err.count("Permission denied; whether that run is finished cannot be told") == 1
    assert sum((folder / METRICS).is_file() for folder in CELL.iterdir()) == len(SEEDS)


def test_what_else_lies_in_a_checkpoint_is_not_taken_along(kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept" / kept.name
    shutil.copytree(kept, path)
    for number, kind in enumerate(strange.KINDS):
        strange.put(kind, path / f"more-{number}")
    checkpoint.copy(checkpoint.read(path), tmp_path / "copy")
    assert checkpoint.read(tmp_path / "copy").manifest == checkpoint.read(path).manifest
    assert not list((tmp_path / "copy").glob("more-*"))
