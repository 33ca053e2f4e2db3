"""What `bench prove` compares: settings and engines that the oracle does not follow are not called proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.prove.proof import prove
from bench.prove.provable import Way, provable_modes, refuse_unproved_job, unproved
from ddp.backends import BACKENDS
from ddp.core.policies import DEFAULT, EVERY_STEP, POLICIES
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.steps import StepSettings
from ddp.engine import ENGINES, EngineSpec
from ddp.replica.task import Job
from tests.runtime import toy


def job(policy: str, backend: str, **fields: Any) -> Job:
    return Job(toy.task, 1, 8, 0, 2, POLICIES[policy](), backend, Path(), **fields)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (job(DEFAULT, "nccl", averaging=Averaging(elastic=0.5)), "averaging.elastic=0.5"),
        (job(DEFAULT, "nccl", averaging=Averaging(wire="bfloat16")), "averaging.wire=bfloat16"),
        (job(EVERY_STEP, "cpu", averaging=Averaging(outer="nesterov")), "averaging.outer=nesterov"),
        (job(EVERY_STEP, "nccl", max_grad_norm=1.0), "train.max_grad_norm=1.0"),
        (job(EVERY_STEP, "nccl", step=StepSettings(precision="fp16")), "train.precision=fp16"),
    ],
)
def test_what_the_oracle_does_not_do_is_refused_by_name(made: Job, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} cannot be proved: .*; leave {named.partition('=')[0]} out$"):
        refuse_unproved_job(made)


def test_what_changes_nothing_is_not_refused() -> None:
    """Gradients that are averaged inside a step are so whatever `averaging` says; a default may be written out."""
    refuse_unproved_job(job(EVERY_STEP, "nccl", averaging=Averaging(elastic=0.5)))
    refuse_unproved_job(job(DEFAULT, "nccl", averaging=Averaging(optimizer_reset=False)))
    refuse_unproved_job(job(DEFAULT, "cpu", step=StepSettings(accumulate=2)))


def test_an_engine_of_a_package_is_not_proved_by_what_ours_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = provable_modes()
    monkeypatch.setitem(ENGINES, "other", EngineSpec("nowhere", backends=True))
    assert "engine=other" in unproved("other", "nccl")
    assert provable_modes() == before
    assert not unproved("elche", "nccl")
    assert not unproved("graph", None)


@pytest.mark.skipif("torchft" not in BACKENDS, reason="torchft is not installed")
def test_averages_of_a_service_are_close_in_double_precision() -> None:
    """They were called different: torchft averages in single precision, and the oracle in double."""
    (found,) = prove(toy.task, [Way("torchft_cadence", "elche", "torchft", POLICIES[DEFAULT](), 2)], 1, 4)
    assert (found.verdict, found.precision) == ("close", "float64")
