"""Checkpoints that are not what they claim, though their sums match: one line, no code run, nothing lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddp.checkpoint import checkpoint
from ddp.checkpoint.checkpoint import BOOKS, MODEL, Torn, find, place, publish, read, resume
from ddp.core.averaging import Averaging
from ddp.core.checkpoint_settings import Checkpointing
from ddp.core.commands import CoordinatorCheckpoint, Publish
from ddp.core.guard import GUARDS
from ddp.core.ledger import Ledger
from ddp.core.policies import POLICIES
from ddp.core.policies.windows import WindowState
from ddp.engine import elche
from ddp.replica.task import Job
from tests.edits import edited
from tests.runtime import toy

pytestmark = pytest.mark.usefixtures("in_process")

EVERY = {"checkpoints": Checkpointing(4, "averages", spacing_s=0.0)}
Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    return make(tmp_path_factory.mktemp("made"))


def make(folder: Path) -> tuple[Job, Path]:
    """A job of two ranks under `cadence`, whose rounds do not depend on time, and a checkpoint of it within an epoch."""
    policy = POLICIES["cadence"](anchor=3, max_anchor=3, max_batch_diff=0)  # nor do its counts
    (folder / "scratch").mkdir()
    job = Job(
        task=toy.task, policy=policy, backend="nccl", epochs=3, batch_size=8, seed=3, world_size=2, deadline_s=30.0,
        scratch=folder / "scratch", checkpoint_folder=folder / "kept", **EVERY,
    )  # fmt: skip
    elche.run(job, lambda record, at: None)
    found, _ = find(folder / "kept")
    assert found is not None
    assert found.books.ledgers[0].merged
    return job, found.path


@pytest.fixture
def job(made: tuple[Job, Path], tmp_path: Path) -> Job:
    """The job that goes on from a copy of it."""
    job, path = made
    shutil.copytree(path, tmp_path / "kept" / path.name)
    (tmp_path / "scratch").mkdir()
    return replace(job, resume=tmp_path / "kept" / path.name, checkpoint_folder=None, scratch=tmp_path / "scratch")


def at(job: Job) -> Path:
    assert job.resume is not None
    return job.resume


def change(job: Job, edit: Change) -> None:
    """Edit the plain form of the books' file."""
    path = at(job) / BOOKS
    books = checkpoint.unbound(path.read_bytes())
    assert books is not None
    path.write_bytes(checkpoint.bound(msgspec.msgpack.encode(edit(msgspec.msgpack.decode(books)))))


def put(job: Job, name: str, held: Any) -> None:
    """Put another part into the checkpoint, with its sums."""
    path = at(job) / name
    if isinstance(held, bytes):
        path.write_bytes(held)
    else:
        torch.save(held, path)
    entry = [name, path.stat().st_size, checkpoint._sha256(path)]
    change(job, lambda body: body | {"files": [entry if file[0] == name else file for file in body["files"]]})


LEDGER = ("books", "ledgers", 0)
STATE, PLAN = ("books", "policy_state"), ("books", "plan")


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("version",), 2),
        (("version",), "3"),
        (("identity", "world_size"), "two"),
        (("identity",), KeyError),
        (("index",), -1),
        (("index",), 10**9),
        (("index",), 2**64 - 1),
        (("members",), []),
        (("members",), [0, 0, 1]),
        (("members",), [-1, 0]),
        (("members",), [0, 7]),
        (("files",), [["../../secret", 3, "ab"]]),
        (("files",), []),
        (("books", "begun"), -1),
        (("books", "begun"), 4),
        (("books", "epoch_samples"), 0),
        (("books", "epoch_samples"), 2**63),
        (("books", "rounds"), -5),
        (("books", "rounds"), 2**62),
        (("books", "saves"), 0),
        (("books", "ledgers"), KeyError),
        ((*LEDGER, "merged"), [[-8, 16]]),
        ((*LEDGER, "merged"), [[16, 8]]),
        ((*LEDGER, "merged"), [[0, 16], [8, 24]]),
        ((*LEDGER, "merged"), [[0, 10**9]]),
        ((*LEDGER, "merged"), [[0, "8"]]),
        ((*LEDGER, "returned"), [[0, 203]]),
        ((*LEDGER, "pools"), [[0, 203]]),
        ((*LEDGER, "pools"), [[0, 0]] * 5),
        ((*LEDGER, "samples"), 10),
        ((*LEDGER, "epoch"), 99),
        ((*LEDGER, "epoch"), -1),
        (PLAN, None),
        ((*PLAN, "counts"), [3]),
        ((*PLAN, "counts"), [0, 0]),
        ((*PLAN, "counts"), [3, -3]),
        ((*PLAN, "ahead"), [-1, 0]),
        ((*PLAN, "weights"), [float("nan"), 0.5]),
        ((*PLAN, "weights"), [1.0]),
        ((*PLAN, "in_step"), True),
        ((*PLAN, "dispatch"), "nonsense"),
        ((*PLAN, "lookahead"), 10**6),
        (STATE, None),
        (STATE, "x"),
        (STATE, {}),
        ((*STATE, "guard"), ["a", "b", "c", "d", "e"]),
        ((*STATE, "guard"), {"last": 3}),
        ((*STATE, "elche", "speeds"), []),
        ((*STATE, "elche", "speeds", 0, "step_s"), float("nan")),
        ((*STATE, "elche", "speeds", 0, "step_s"), float("inf")),
        ((*STATE, "elche", "costs"), [float("-inf")]),
        ((*STATE, "elche", "counts"), [1, 2, 3]),
        ((*STATE, "elche", "rank"), 17),
        ((*STATE, "elche", "anchor"), 10**15),
    ],
    ids=str,
)
def test_books_that_cannot_be_are_refused_before_anything_starts(job: Job, keys: tuple[Any, ...], value: Any) -> None:
    change(job, lambda body: edited(body, keys, value))
    with pytest.raises(Torn) as caught:
        resume(job)
    assert "\n" not in str(caught.value)
    assert str(at(job)) in str(caught.value)


@pytest.mark.parametrize(
    ("averaging", "said"),
    [
        (Averaging(gamma=0.5), "of a run with gamma=1.0, this one has 0.5"),
        (Averaging(elastic=0.5), "of a run with elastic=None, this one has 0.5"),
        (Averaging(wire="bfloat16"), "of a run with wire=float64, this one has bfloat16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_way_to_average_is_no_way_to_go_on(job: Job, averaging: Averaging, said: str) -> None:
    assert resume(job) is not None
    with pytest.raises(ValueError, match=said):
        resume(replace(job, averaging=averaging))


def test_a_ledger_twice_is_refused(job: Job) -> None:
    change(job, lambda body: edited(body, ("books", "ledgers"), body["books"]["ledgers"] * 2))
    with pytest.raises(Torn, match="contradict themselves"):
        read(at(job))


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"[" * 10, b"\x91" * 200_000, bytes(range(256)) * 4], ids=lambda b: len(b)
)
def test_books_that_are_none_are_refused(job: Job, content: bytes) -> None:
    (at(job) / BOOKS).write_bytes(content)
    with pytest.raises(Torn, match="not the books of a checkpoint"):
        read(at(job))


def test_what_is_no_file_is_refused_without_waiting_for_it(job: Job, tmp_path: Path) -> None:
    books, model, aside = at(job) / BOOKS, at(job) / MODEL, tmp_path / "aside"
    for path in (books, model):
        path.rename(aside)
        os.mkfifo(path)  # whose reader waits for ever
        with pytest.raises(Torn, match="not a file"):
            read(at(job))
        path.unlink()
        path.symlink_to("/dev/zero")  # which has no end
        with pytest.raises(Torn, match="not a file"):
            read(at(job))
        path.unlink()
        path.symlink_to(path)
        with pytest.raises(Torn, match=path.name):
            read(at(job))
        path.unlink()
        with pytest.raises(Torn, match=path.name):
            read(at(job))
        aside.rename(path)
    with books.open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(Torn, match="too large"):
        read(at(job))


def test_a_symlink_to_a_whole_one_is_as_good(job: Job, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "000009").symlink_to(at(job))
    found, problems = find(tmp_path / "links")
    assert found is not None
    assert problems == []
    (tmp_path / "empty" / "000003").mkdir(parents=True)
    (tmp_path / "empty" / "000004").symlink_to("nowhere")
    assert find(tmp_path / "empty")[0] is None


class Evil:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def run(job: Job) -> None:
    elche.run(job, lambda record, at: None)


def other_model(job: Job) -> dict[str, Any]:
    wide = torch.nn.Linear(50, 50)
    held = torch.load(at(job) / MODEL, weights_only=True)
    return held | {"tensors": [torch.cat([p.detach().flatten() for p in wide.parameters()])], "kept": []}


def with_key(name: str, key: str, value: Any) -> Change:
    def edit(job: Job) -> Any:
        held = torch.load(at(job) / name, weights_only=True)
        return {k: v for k, v in held.items() if k != key} | ({} if value is KeyError else {key: value})

    return edit


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (MODEL, lambda job: {"tensors": Evil(job.scratch / "run")}, "not a part of a checkpoint"),
        ("rank-0.pt", lambda job: Evil(job.scratch / "run"), "not a part of a checkpoint"),
        (MODEL, lambda job: b"", "not a part of a checkpoint"),
        (MODEL, lambda job: b"PK\x03\x04 no archive", "not a part of a checkpoint"),
        (MODEL, lambda job: [1, 2], "not a part of a checkpoint"),
        (MODEL, other_model, "parameters and buffers are not those of this model"),
        (MODEL, with_key(MODEL, "of", KeyError), "a part of no checkpoint lies where the model of checkpoint 2 of run"),
        (MODEL, with_key(MODEL, "data", KeyError), "does not say what data it is of"),
        (MODEL, with_key(MODEL, "data", {"training": {}, "evaluation": 3}), "does not say what data it is of"),
        (MODEL, with_key(MODEL, "tensors", KeyError), "are not those of this model"),
        (MODEL, with_key(MODEL, "tensors", {"a": 1}), "are not those of this model"),
        (MODEL, with_key(MODEL, "kept", [torch.zeros(3)]), "averages are not those of this model"),
        ("rank-1.pt", with_key("rank-1.pt", "optimizer", KeyError), "not the state of this optimizer"),
        ("rank-1.pt", with_key("rank-1.pt", "optimizer", {"state": {}, "param_groups": []}), "not the state of this"),
        (
            "rank-1.pt",
            with_key("rank-1.pt", "rates", (None, float("nan"), 1.0, False)),
            "finite number of 0 or more, not nan",
        ),
        ("rank-1.pt", with_key("rank-1.pt", "rates", "abc"), "not the state of this optimizer"),
        ("rank-1.pt", with_key("rank-1.pt", "others", ((3, (1,), None), {})), "not the state of this optimizer"),
        ("rank-1.pt", with_key("rank-1.pt", "begun", 10**9), "not the state of this optimizer"),
        ("rank-1.pt", with_key("rank-1.pt", "steps", "many"), "not the state of this optimizer"),
    ],
)
def test_parts_that_cannot_be_gone_on_with_are_one_line(job: Job, name: str, content: Change, why: str) -> None:
    put(job, name, content(job))
    with pytest.raises(Torn, match=why) as caught:
        run(job)
    assert "\n" not in str(caught.value)
    assert not (job.scratch / "run").exists(), "code was run"
    assert read(at(job)), "it is still there"


def swap(job: Job, one: Path, other: Path) -> None:
    """Exchange two files of checkpoints, and sign the first one's place anew."""
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    for path in (one, other):
        if path.parent == at(job):
            put(job, path.name, path.read_bytes())


def test_parts_of_two_ranks_that_were_exchanged_are_told_apart(job: Job) -> None:
    swap(job, at(job) / "rank-0.pt", at(job) / "rank-1.pt")
    part = r"the part of rank \d of checkpoint 2 of run \w+"
    told = f"{part} lies where {part} belongs"
    with pytest.raises(Torn, match=told) as caught:
        run(job)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [MODEL, "rank-0.pt"])
def test_a_part_of_the_checkpoint_before_is_told_apart(made: tuple[Job, Path], job: Job, name: str) -> None:
    before = made[1].with_name("000001") / name
    put(job, name, before.read_bytes())
    with pytest.raises(Torn, match=r"of checkpoint 1 of run \w+ lies where .* of checkpoint 2 of run \w+ belongs"):
        run(job)


def test_a_part_of_the_same_checkpoint_of_another_run_is_told_apart(job: Job, tmp_path: Path) -> None:
    again = replace(job, resume=None, checkpoint_folder=tmp_path / "other", run="", **EVERY)
    run(again)
    put(job, "rank-0.pt", (tmp_path / "other" / at(job).name / "rank-0.pt").read_bytes())
    with pytest.raises(Torn, match="the part of rank 0 of checkpoint 2 of run"):
        run(job)


def test_other_data_than_before_are_refused_between_two_epochs_too(job: Job) -> None:
    def at_an_epochs_end(body: Any) -> Any:
        body["books"]["begun"] -= len(body["books"]["ledgers"])
        body["books"]["ledgers"] = []
        return body

    change(job, at_an_epochs_end)
    with pytest.raises(Torn, match="of 203 training samples, there are 150 now"):
        run(replace(job, task=partial(toy.task, samples=150)))


def test_nothing_that_is_edited_gets_through(job: Job) -> None:
    """The file that the edits above are made to is whole without them."""
    change(job, lambda body: body)
    put(job, MODEL, torch.load(at(job) / MODEL, weights_only=True))
    held = resume(job)
    assert held is not None
    assert isinstance(held.books.policy_state, WindowState)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_byte_of_the_books_brings_anything_but_a_refusal(job: Job, data: st.DataObject) -> None:
    original = (at(job) / BOOKS).read_bytes()
    books = checkpoint.unbound(original)
    content = bytearray(books or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                content[where] = data.draw(st.integers(0, 255))
            case "cut":
                del content[where : where + data.draw(st.integers(1, 4))]
            case "insert":
                content[where:where] = data.draw(st.binary(min_size=1, max_size=9))
    (at(job) / BOOKS).write_bytes(checkpoint.bound(bytes(content)))
    try:
        with suppress(ValueError):  # and nothing else
            resume(job)
        if content != books:
            (at(job) / BOOKS).write_bytes(bytes(content) + original[-32:])
            with pytest.raises(Torn, match=str(at(job))):
                read(at(job))
    finally:
        (at(job) / BOOKS).write_bytes(original)


def test_every_part_is_as_it_was_written(job: Job) -> None:
    for name in (MODEL, "rank-0.pt", "rank-1.pt"):
        original = (at(job) / name).read_bytes()
        for where in range(0, len(original), len(original) // 20):
            content = bytearray(original)
            content[where] ^= 1
            (at(job) / name).write_bytes(content)
            with pytest.raises(Torn, match=f"{at(job) / name}: torn, its content is not what was written"):
                read(at(job))
        (at(job) / name).write_bytes(original)
    assert read(at(job))


def test_books_without_a_digest_are_of_an_earlier_version(job: Job) -> None:
    books = checkpoint.unbound((at(job) / BOOKS).read_bytes())
    assert books is not None
    (at(job) / BOOKS).write_bytes(books)
    with pytest.raises(Torn, match="not what was written"):
        read(at(job))
    (at(job) / BOOKS).write_bytes(msgspec.msgpack.encode(msgspec.msgpack.decode(books) | {"version": 5}))
    assert read(at(job)).manifest.version == 5


def laid_down(folder: Path, index: int, samples: int = 10) -> tuple[Job, Publish]:
    job = Job(toy.task, 9, 8, 0, 1, None, "nccl", folder, checkpoint_folder=folder)  # type: ignore[arg-type]
    files = tuple(checkpoint.save(folder, index, name, {}) for name in ("rank-0.pt", MODEL))
    ledgers = (Ledger(0, samples).merge(((0, 5),)).reopen(),)
    return job, Publish(
        index, (0,), files, CoordinatorCheckpoint(samples, 1, ledgers, 0, index + 1, None, None), "test"
    )


def test_what_is_not_ours_in_the_folder_stays(tmp_path: Path) -> None:
    """A folder of the user's whose name began with a digit was removed as an old checkpoint."""
    others = [tmp_path / name for name in ("2024-data", "000001-notes", "000007", ".part-mine", "12")]
    for path in others:
        path.mkdir()
        (path / "kept.txt").write_text("mine")
    for index in range(4):
        publish(*laid_down(tmp_path, index))
    assert all((path / "kept.txt").exists() for path in others)
    assert sorted(path.parent.name for path in tmp_path.glob(f"*/{BOOKS}")) == ["000002", "000003"]


def test_a_run_that_begins_anew_in_the_folder_of_another_keeps_its_own(tmp_path: Path) -> None:
    """Its first checkpoints were taken for too old, and what was found was the other run's."""
    for index in (7, 8):
        publish(*laid_down(tmp_path, index))
    publish(*laid_down(tmp_path, 0))
    found, problems = find(tmp_path)
    assert found is not None
    assert (found.path, problems) == (place(tmp_path, 0), [])
    assert [path.parent.name for path in tmp_path.glob(f"*/{BOOKS}")] == ["000000"]


def test_the_latest_is_that_of_the_highest_number(tmp_path: Path) -> None:
    for index in (999_999, 1_000_000):
        publish(*laid_down(tmp_path, index))
    found, _ = find(tmp_path)
    assert found is not None
    assert found.manifest.index == 1_000_000


@pytest.mark.parametrize("guard", ["level", "growth", "none"])
def test_the_guards_state_is_its_own_again(play: Any, tmp_path: Path, guard: str) -> None:
    """Of `growth` it was a dictionary, at which the resumed run came to grief."""
    options = {"anchor": 3, "max_anchor": 3, "guard": guard}
    play("cadence", "cpu", options=options, epochs=3, checkpoint_folder=tmp_path / "kept", **EVERY)
    found, _ = find(tmp_path / "kept")
    assert found is not None
    rest = play("cadence", "cpu", options=options, epochs=3, resume=found.path)
    held = resume(rest.job)
    assert held is not None
    begun = GUARDS[guard](0.05).start()
    assert type(held.books.policy_state.guard) is type(begun)
    assert rest.digests
