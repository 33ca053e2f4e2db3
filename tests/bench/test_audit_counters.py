"""The audit's count of steps: a pass in another mode shows though its step is not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.audit.kept import read
from ddp.core.events import Finished
from ddp.replica.replica import Replica
from tests.bench.audit_breaks import ADAM, wrapped
from tests.bench.audited import audited, different, train_alone
from tests.bench.test_audit_ranks import train_together
from tests.runtime.conftest import in_process as in_process

ALONE = 20
"""A step that is not kept."""


def in_evaluation(step: Any, self: Any, *batch: Any) -> Any:
    self.count = getattr(self, "count", -1) + 1
    self.model.train(self.count != ALONE)
    done = step(*batch)
    self.model.train()
    return done


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["solo", "nccl_sync"])
def test_a_pass_that_nobody_keeps_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    with monkeypatch.context() as patch:
        wrapped(Replica, "step", in_evaluation)(patch)
        job, records = train_alone(tmp_path, ADAM) if mode == "solo" else train_together(tmp_path, mode, ADAM, epochs=6)
    files = [file for record in records if isinstance(record, Finished) for file in record.kept]
    kept = {step.step for step in read(job.scratch, files).steps}
    assert min(kept) < ALONE < max(kept)
    assert ALONE not in kept, kept
    found = different(audited(job, records))
    assert any("num_batches_tracked counted" in line for line in found), found
