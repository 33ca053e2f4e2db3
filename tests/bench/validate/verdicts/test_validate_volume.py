"""The check of the bytes that ranks send, and the formula that it compares them with."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results.analysis.volume import volume
from bench.results.runfolder import Run, find_runs
from bench.results.schema import ResumedFrom
from bench.validate.checks.volume import BARE, BEYOND, FLAG, WIDE, _beyond, _buffers, formula
from bench.validate.evidence.consistency import _is_earlier
from ddp.core.messages.event_parts import SketchGroup
from tests.bench.references import one, with_eval
from tests.bench.streams import make_metrics, make_spec, write_run

MIXED = 475 * 2 + 25 * 4
"""Bytes of 500 parameters, some in half precision."""


@pytest.mark.parametrize(
    ("mode", "meetings", "width"), [("nccl_sync", 90, 4), ("nccl_cadence", 18, 8), ("cpu_async", 18, 8)]
)
def test_volume_is_meetings_times_model(tmp_path: Path, mode: str, meetings: int, width: int) -> None:
    run = find_runs(write_run(tmp_path, make_spec(mode)))[0][0]
    assert formula(run) == meetings * 2 * 500 * width
    assert one(tmp_path, tmp_path / "none", "volume").name == "PASS"


@pytest.mark.parametrize(("backend", "meetings"), [("nccl", 6), ("zero1", 6), ("zero2", 22), ("zero3", 22)])
def test_volume_with_micro_batches(backend: str, meetings: int) -> None:
    """Two epochs of 106 samples, in steps of 2 ranks x 20 samples: the last has 26, in 3 micro-batches of 4 or 5."""
    metrics = with_eval(make_spec("nccl_sync"), 0.97)
    assert metrics.ledger is not None
    about = {"backend": backend, "batch_size": 20, "epochs_planned": 2, "parameters": 500}
    metrics = metrics.model_copy(update=about | {"ledger": metrics.ledger.model_copy(update={"samples": 106})})
    assert volume(metrics, {"train": {"accumulate": 4}}).expected == meetings * 2 * 500 * 4
    known = volume(metrics, {"train": {"accumulate": 20}}).expected  # batch norm: 10 micro-batches of 2, else 20
    assert known == (None if meetings == 22 else meetings * 2 * 500 * 4)


def test_bytes_of_the_rest_are_not_divided_by_all_steps() -> None:
    metrics = with_eval(make_spec("nccl_sync"), 0.97)
    resumed = ResumedFrom(source="before", checkpoint=1, epochs=1, samples=64, seconds=1.0, times=1)
    assert volume(metrics, {}).per_step == metrics.sync.bytes / metrics.steps
    assert volume(metrics.model_copy(update={"resumed": resumed}), {}).per_step is None


@pytest.mark.parametrize(("mode", "frozen"), [("nccl_sync", 120), ("nccl_cadence", 0)])
def test_volume_of_a_model_that_is_frozen_in_part(mode: str, frozen: int) -> None:
    """No gradient of what is not trained travels; the parameters do."""
    metrics = with_eval(make_spec(mode), 0.97)
    whole, part = volume(metrics, {}).expected, volume(metrics.model_copy(update={"frozen": 120}), {}).expected
    assert whole is not None
    assert part == whole * (500 - frozen) // 500


@pytest.mark.parametrize(("state", "copies"), [([4_000, 4_016], 3), ([2_008, 2_008], 2), ([None, 0], 1)])
def test_volume_with_averaged_optimizer_state(state: list[int | None], copies: int) -> None:
    """Counters make it no whole number of copies of the parameters."""
    metrics = with_eval(make_spec("nccl_cadence"), 0.97)
    memory = metrics.memory.model_copy(update={"optimizer_bytes": state, "parameter_bytes": [2_000, 2_000]})
    metrics = metrics.model_copy(update={"memory": memory})
    plain, whole = (volume(metrics, {"averaging": {"optimizer_state": each}}).expected for each in (False, True))
    assert plain is not None
    assert whole == copies * plain


@pytest.mark.parametrize(
    ("mode", "held", "width"),
    [("nccl_sync", 4_000, 8), ("nccl_sync", 1_000, 2), ("cpu_async", 1_000, 4), ("nccl_cadence", 1_000, 8)],
)
def test_volume_goes_by_the_type_of_the_model(mode: str, held: int, width: int) -> None:
    """500 parameters; averages of `nccl` travel in double precision, whatever the model has."""
    metrics = with_eval(make_spec(mode), 0.97)
    memory = metrics.memory.model_copy(update={"parameter_bytes": [held, held]})
    meetings = 90 if mode == "nccl_sync" else 18
    assert volume(metrics.model_copy(update={"memory": memory}), {}).expected == meetings * 2 * 500 * width


@pytest.mark.parametrize(
    ("mode", "frozen", "expected"),
    [
        ("nccl_sync", 0, 90 * 2 * MIXED),
        ("nccl_sync", 20, None),
        ("cpu_async", 0, 18 * 2 * 2 * MIXED),
        ("cpu_async", 20, 18 * 2 * 2 * MIXED),
        ("nccl_cadence", 0, 18 * 2 * 500 * 8),
    ],
)
@pytest.mark.parametrize("near", [0, 1])
def test_volume_of_a_model_of_two_types_is_what_it_holds(
    mode: str, frozen: int, expected: int | None, near: int
) -> None:
    """Each type travels in a tensor of its own; all parameters were taken for four bytes. `near`: nearly all are."""
    held = (MIXED, 500 * 4 - 5 * 2)[near]
    metrics = with_eval(make_spec(mode), 0.97)
    memory = metrics.memory.model_copy(update={"parameter_bytes": [held, held]})
    found = volume(metrics.model_copy(update={"memory": memory, "frozen": frozen}), {}).expected
    assert found == (expected * held // MIXED if expected and mode != "nccl_cadence" else expected)


@pytest.mark.parametrize(("held", "expected"), [(MIXED, None), (2_000, 4), (2_030, 4), (2_300, 4), (1_010, 2)])
def test_shards_are_padded_so_two_types_in_them_are_not_known(held: int, expected: int | None) -> None:
    metrics = with_eval(make_spec("nccl_sync"), 0.97)
    memory = metrics.memory.model_copy(update={"parameter_bytes": [held // 2, held // 2]})
    found = volume(metrics.model_copy(update={"memory": memory, "backend": "zero3"}), {}).expected
    assert found == (expected and 90 * 2 * 500 * expected)


@pytest.mark.parametrize(
    ("field", "held", "earlier"),
    [
        ("timeline.volume.expected", MIXED, True),
        ("timeline.volume.ratio", MIXED, True),
        ("timeline.volume.expected", 2_000, False),
        ("sync.bytes", MIXED, False),
    ],
)
def test_what_an_earlier_version_expected_of_two_types_was_not_edited(field: str, held: int, earlier: bool) -> None:
    metrics = with_eval(make_spec("nccl_sync"), 0.97)
    memory = metrics.memory.model_copy(update={"parameter_bytes": [held, held]})
    run = Run(Path("there"), metrics.model_copy(update={"memory": memory}))
    assert _is_earlier(field, 1, 2, run) is earlier


@pytest.mark.parametrize(("mode", "expected"), [("nccl_sync", None), ("nccl_cadence", 18 * 2 * 500 * 4)])
def test_torchft_sends_gradients_unmeasured_and_parameters_in_their_type(mode: str, expected: int | None) -> None:
    """All its runs failed: -99.98 % and -49.99 %."""
    metrics = with_eval(make_spec(mode), 0.97).model_copy(update={"backend": "torchft"})
    assert volume(metrics, {}).expected == expected


def test_large_buffers_may_travel_too() -> None:
    groups = [SketchGroup("w", "parameters", 100, "float32", trained=True)]
    assert _buffers(groups) == 0.0
    assert _buffers([*groups, SketchGroup("queue", "buffers", 300, "float32", trained=False)]) == WIDE * 3.0


@pytest.mark.parametrize(
    ("mode", "groups", "beyond"),
    [
        ("nccl_cadence", (("parameters", "float32"),), BARE),
        ("nccl_cadence", (("parameters", "float32"), ("buffers", "float32")), WIDE),
        ("nccl_cadence", (("parameters", "float32"), ("parameters", "float64")), BEYOND),
        ("nccl_sync", (("parameters", "float32"),), BARE + FLAG / 100),
        ("nccl_sync", (("parameters", "float32"), ("parameters", "float32")), BARE + FLAG / 100),
        ("nccl_cadence", (), BEYOND),
    ],
)
def test_replicas_without_buffers_send_little_more(
    mode: str, groups: tuple[tuple[str, str], ...], beyond: float
) -> None:
    rows = [SketchGroup("row", kind, 100, dtype, trained=kind == "parameters") for kind, dtype in groups]
    assert _beyond(make_metrics(make_spec(mode)), rows) == beyond


@pytest.mark.parametrize("factor", [0.5, 0.99, 2.0])
def test_a_volume_that_is_not_the_formulas_fails(tmp_path: Path, factor: float) -> None:
    spec = make_spec("nccl_sync")
    metrics = with_eval(spec, 0.97)
    sync = metrics.sync.model_copy(update={"bytes": int(metrics.sync.bytes * factor)})
    write_run(tmp_path, spec, metrics.model_copy(update={"sync": sync}))
    assert one(tmp_path, tmp_path / "none", "volume").name == "FAIL"
