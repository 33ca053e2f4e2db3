"""What an audit goes by: files of drawn steps, definitions, content of data, and the check that reads what was found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bench.audit.bundled.definitions import defined
from bench.audit.documented import contents, reading
from bench.audit.documented.reading import CONTENTS, committed, content
from bench.models import parts as set_ups
from bench.results.audit_file import AUDIT, AuditItem, AuditReport, write_report
from bench.results.runfolder import find_runs
from ddp.data.source import TensorSource
from ddp.replica.evidence.step_draws import STRETCHES, StepDraws
from tests.bench.audit.audited import audited, different, train_alone
from tests.bench.references import one
from tests.bench.streams import make_spec, write_run
from tests.runtime import toy


def smoothed(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


def ties(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    scores = model(batch[0])
    best, own = scores.max(1).values - 0.1, scores.gather(1, batch[1][:, None])[:, 0]
    return nn.functional.cross_entropy(scores, batch[1], reduction="sum"), (own >= best).sum()


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        ({}, ""),
        ({"loss": smoothed}, "loss by its definition"),
        ({"evaluate": ties}, "metric of the test set"),
    ],
)
def test_functions_of_a_set_up_are_held_against_definitions(tmp_path: Path, changes: dict[str, Any], sign: str) -> None:
    """The task is as wrong where it is audited."""
    found = different(audited(*train_alone(tmp_path, lambda: replace(toy.task(), **changes)), model="mlp"))
    assert any(sign in line for line in found) if sign else not found, found


@given(samples=st.integers(1, 5), tokens=st.integers(1, 4), seed=st.integers(0, 9))
def test_definitions_agree_with_the_set_ups(samples: int, tokens: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(samples, tokens, 6, generator=generator) * 4
    answers = torch.randint(0, 6, (samples, tokens), generator=generator)
    for model, evaluate, batch in (
        ("gpt_nano", set_ups.token_entropy, (scores, answers)),
        ("lenet", set_ups.accuracy, (scores[:, 0], answers[:, 0])),
    ):
        known = defined(model, batch[0], batch)
        assert known == pytest.approx(tuple(map(float, evaluate(nn.Identity(), batch))), rel=1e-5, abs=1e-5)
    assert defined("conv_ae", scores, (scores, answers)) is None


def test_files_that_were_swapped_or_lost_are_named(tmp_path: Path) -> None:
    job, records = train_alone(tmp_path, toy.task)
    first, second, *_ = sorted(tmp_path.glob("kept-0-*.state"))
    second.write_bytes(first.read_bytes())
    first.unlink()
    report = audited(job, records)
    assert [line for line in different(report) if "has another digest than the rank recorded" in line]
    assert [item.line for item in report.items if item.outcome == "skipped"] == [f"{first.name} is missing"]


@given(total=st.integers(1, 5000), window=st.integers(1, 300), rank=st.integers(0, 3), seed=st.integers(0, 99))
def test_every_run_has_as_many_drawn_steps_as_it_can(total: int, window: int, rank: int, seed: int) -> None:
    """Whatever the batches: a step for each stretch, and one in the first and the last window."""
    draws = StepDraws.of(f"run {seed}", rank, total, window, alone=True)
    assert min(total, STRETCHES) <= len(draws.samples) <= STRETCHES + 2
    assert draws.has(0, window, 10**9)
    assert draws.has(max(total - window, 0), total, 10**9)
    assert all(0 <= sample < total for sample in draws.samples)
    for first in range(0, total, window):
        step = first // window
        assert draws.has(first, first + window, step) == (
            step in draws.steps or any(first <= sample < first + window for sample in draws.samples)
        )


@given(rank=st.integers(0, 3), seed=st.integers(0, 99), epochs=st.integers(1, 9), own=st.integers(1, 400))
def test_ranks_that_step_alone_have_drawn_steps_behind_averages_and_in_the_last_epoch(
    rank: int, seed: int, epochs: int, own: int
) -> None:
    alone, together = (
        StepDraws.of(f"run {seed}", rank, epochs * own * 8, 8, each, epochs=epochs) for each in (True, False)
    )
    assert [alone.after(averages) for averages in range(3)] == [False, True, True]
    assert 2 <= sum(map(alone.after, range(1, 1000))) <= 40
    assert 0 <= alone.late < max(own // 4, 1)
    assert together.late < 0
    assert not any(map(together.after, range(9)))


def test_bundled_data_has_the_committed_content() -> None:
    """Written by `python -m bench.audit.documented.contents`; of another version of Python the line may be missing."""
    known = json.loads(CONTENTS.read_text())
    found = contents.made()
    assert {name: known.get(name) for name in found if " of Python " not in name} == {
        name: parts for name, parts in found.items() if " of Python " not in name
    }
    assert all(known[name] == parts for name, parts in found.items() if name in known)
    assert committed("noisy_digits") == found["noisy_digits"]


def test_data_of_another_content_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, records = train_alone(tmp_path, toy.task)
    train, test = map(content, (toy.source(None, toy.SAMPLES), TensorSource(*toy.data(100))))
    monkeypatch.setattr(reading, "CONTENTS", tmp_path / "contents.json")
    for digests, parts in (((train, test), []), ((train, train), ["data: the test part of toy has digest"])):
        body = {"toy": dict(zip(("train", "test"), digests, strict=True))}
        reading.CONTENTS.write_text(json.dumps(body))
        found = different(audited(job, records))
        assert len(found) == len(parts)
        assert all(line.startswith(part) for line, part in zip(found, parts, strict=True))


class Named(TensorSource):
    """Its batches are dictionaries."""

    def batch(self, indices: Tensor) -> Any:  # type: ignore[override]
        return dict(zip(("inputs", "targets"), super().batch(indices), strict=True))

    def to(self, device: torch.device) -> Named:
        return self


def by_name(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch["inputs"]), batch["targets"])


def evaluated_by_name(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return toy.evaluate(model, (batch["inputs"], batch["targets"]))


def test_a_users_model_may_see_bundled_data_in_another_form(tmp_path: Path) -> None:
    source = Named(*toy.data(40))
    changes: dict[str, Any] = {"train_data": lambda: source, "eval_data": lambda: source}
    task = replace(toy.task(), loss=by_name, evaluate=evaluated_by_name, **changes)
    report = audited(*train_alone(tmp_path, lambda: task), model="", data="digits")
    assert not different(report)
    assert "equal" in {item.outcome for item in report.items if item.what == "step"}


def sealed_run(root: Path, audit: bool = True) -> Path:
    """A finished run with an audit of two steps, of either half."""
    folder = write_run(root, make_spec("solo"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"audit": audit}))
    (run,) = find_runs(folder)[0]
    last = run.metrics.steps - 1
    items = [AuditItem(what="step", outcome="equal", rank=0, epoch=0, step=k, largest=0.1) for k in (0, last)]
    report = AuditReport(run_id=run.metrics.run_id, seconds=0.1, kept=[], items=items)
    write_report(folder, report, run.metrics)
    return folder


def test_the_check_reads_what_the_audit_found(tmp_path: Path) -> None:
    folder, base = sealed_run(tmp_path / "runs"), tmp_path / "none"
    assert one(tmp_path / "runs", base, "audit").name == "PASS"
    path = folder / AUDIT
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"seconds": 0.2}))
    assert "was changed" in one(tmp_path / "runs", base, "audit").line
    (run,) = find_runs(folder)[0]
    report = AuditReport.model_validate(body)
    wrong = AuditItem(
        what="step", outcome="different", line="loss: 1 in the run, 2 recomputed", rank=1, epoch=2, step=3
    )
    write_report(folder, report.model_copy(update={"items": [*report.items, wrong]}), run.metrics)
    verdict = one(tmp_path / "runs", base, "audit")
    assert (verdict.name, "step, rank 1, epoch 2, step 3: loss: 1 in the run" in verdict.line) == ("FAIL", True)
    write_report(folder, report.model_copy(update={"run_id": "w1-s9-other"}), run.metrics)
    assert one(tmp_path / "runs", base, "audit").name == "REFUSED"
    write_report(folder, report.model_copy(update={"items": []}), run.metrics)
    assert one(tmp_path / "runs", base, "audit").name == "INCONCLUSIVE"
    path.unlink()
    verdict = one(tmp_path / "runs", base, "audit")
    assert (verdict.name, f"python -m bench audit {folder}" in verdict.line) == ("INCONCLUSIVE", True)


def test_a_run_that_was_not_to_be_audited_is_not_judged(tmp_path: Path) -> None:
    sealed_run(tmp_path / "runs", audit=False)
    with pytest.raises(ValueError, match="expected 1, got 0"):
        one(tmp_path / "runs", tmp_path / "none", "audit")
