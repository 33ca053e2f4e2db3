"""Files that others may have put there: regular ones of bounded size, opened in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bench
from ddp import regular_files
from tests import strange
from tests.held_back import held_back

BENCH = Path(bench.__file__).parent
READERS = {"open", "read_text", "read_bytes", "load", "copyfile", "copytree", "copy", "copy2", "fromfile", "memmap"}
"""Names by which files are opened or copied."""
OTHERS = {"json", "models", "regular", "expected", "webbrowser"}
"""`load` and `copy` of what is no file."""
OWN = {
    ("results/lease.py", "read_text"): "the boot of this machine, from /proc",
    ("dashboard/page.py", "read_text"): "assets of the package",
    ("audit/delivered.py", "torch.load"): "a file that was opened so",
    ("audit/documented/contents.py", "read_text"): "a table of the package",
    ("audit/documented/reading.py", "read_text"): "a table of the package",
    ("audit/bundled/setups.py", "read_text"): "a table of the package",
    ("report/glossary.py", "read_bytes"): "the source of a module of ours or the user's",
    ("base/environment.py", "read_text"): "of /proc",
    ("results/journal.py", "open"): "its own file, to append to",
    ("command/verbs/compare_command.py", "open"): "GitHub's step summary, to append to",
    ("command/sweeps/slurm_sweep.py", "open"): "the sweep's own key, to write",
    ("command/sweeps/slurm_sweep.py", "os.open"): "the sweep's own key, to write",
    ("command/printed/summary.py", "open"): "the run's own log, to append to",
    ("loggers/tensorboard_events.py", "open"): "pictures that this command drew",
    ("loggers/tensorboard_events.py", "read_bytes"): "pictures that this command drew",
    ("command/verbs/validate_command.py", "open"): "GitHub's step summary, to append to",
    ("runner/launch.py", "open"): "its own log, to write",
    ("runner/slurm_batch.py", "open"): "its own log, to append to",
    ("runner/starts.py", "open"): "its own file, to append to",
    ("runner/ray_rank.py", "open"): "its own log, to append to",
    ("faults/store.py", "open"): "its own file, to append to",
    ("command/verbs/listing.py", "read_bytes"): "the source of a module of ours",
    ("command/verbs/listing.py", "read_text"): "conf/",
    ("report/html.py", "read_text"): "assets of the package",
    ("results/planned.py", "OmegaConf.load"): "conf/",
    ("base/console.py", "os.open"): "the null device",
    ("base/writing.py", "open"): "a device, to append to",
    ("config/compose.py", "read_text"): "what a searching sweeper left in the command's own folder",
    ("config/key_docs.py", "read_text"): "sources of the package",
    ("faults/processes.py", "read_text"): "what a process of this command left in its own folder",
    ("config/point_task.py", "read_bytes"): "what a process of this command left in its own folder",
    ("runner/script.py", "read_bytes"): "the user's script",
    ("__main__.py", "os.open"): "the null device",
    ("timeline/html.py", "read_text"): "assets of the package",
    ("command/printed/help_page.py", "OmegaConf.load"): "conf/",
    ("prove/engines.py", "torch.load"): "its own scratch folder",
    ("prove/entrants.py", "read_text"): "its own scratch folder",
    ("prove/entrants.py", "torch.load"): "its own scratch folder",
    ("prove/ranks.py", "read_text"): "its own scratch folder",
    ("prove/ranks.py", "torch.load"): "its own scratch folder",
    ("prove/tasks.py", "torch.load"): "its own scratch folder",
    ("prove/windows.py", "read_text"): "its own scratch folder",
    ("runner/digests.py", "read_bytes"): "the source of a module of the user's",
    ("runner/script_again.py", "read_bytes"): "the user's script, and what it was told to write",
    ("validate/expected.py", "OmegaConf.load"): "text that was read already",
}
"""Who opens what is no file of a run or a baseline."""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", strange.KINDS)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    strange.put(kind, path)
    for read in (regular_files.content, lambda path: list(regular_files.lines(path))):
        with held_back(), pytest.raises(OSError, match=kind) as caught:
            read(path)
        assert caught.value.filename == str(path)


def test_a_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\ntwo\nhalf")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        path = tmp_path / name
        assert regular_files.content(path) == b"one\ntwo\nhalf"
        assert list(regular_files.lines(path)) == [b"one\n", b"two\n", b"half"]
        assert list(regular_files.whole_lines(path)) == [b"one", b"two"]
    with pytest.raises(FileNotFoundError):
        regular_files.content(tmp_path / "nothing")


def test_a_hole_among_lines_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\n")
    with path.open("r+b") as file:
        file.truncate(1 << 36)
    lines = regular_files.lines(path)
    assert next(lines) == b"one\n"
    with pytest.raises(OSError, match=r"a line of more than 16,777,216 bytes"):
        next(lines)


def test_sizes_are_bounded_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert regular_files.content(path, 5) == b"12345"
    assert regular_files.size(path, 5) == 5
    with pytest.raises(OSError, match=r"too large \(5 bytes, 4 at most\)"):
        regular_files.content(path, 4)
    regular_files.copy(path, tmp_path / "copy", 5)
    assert (tmp_path / "copy").read_bytes() == b"12345"


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs files that tell no size")
def test_what_a_file_has_beyond_its_size_is_read_too() -> None:
    path = Path("/proc/self/cmdline")
    assert path.stat().st_size == 0
    assert regular_files.content(path) == path.read_bytes() != b""
    with pytest.raises(OSError, match="too large"):
        regular_files.content(path, 1)


def test_nothing_else_opens_files_of_runs_or_baselines() -> None:
    """Whoever reads a file that is not listed above does so by `ddp.regular_files`."""
    found = {
        (file.relative_to(BENCH).as_posix(), called)
        for file in BENCH.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Call) and (called := opening(node.func)) is not None
    }
    assert found == set(OWN)


def opening(function: ast.expr) -> str | None:
    """How a call opens a file, if it does."""
    if isinstance(function, ast.Name):
        return function.id if function.id in READERS - {"load", "copy"} else None
    if not isinstance(function, ast.Attribute) or function.attr not in READERS:
        return None
    of = ast.unparse(function.value)
    if of in OTHERS or (
        function.attr in ("load", "copy") and of not in ("torch", "np", "numpy", "shutil", "OmegaConf")
    ):
        return None
    return f"{of}.{function.attr}" if of in ("os", "OmegaConf", "torch", "np", "shutil") else function.attr
