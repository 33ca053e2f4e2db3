"""The audit where an epoch begins: nothing but a callback may change a state there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp.engine.loop import TrainingLoop
from tests.bench.audit.audit_breaks import ADAM, wrapped
from tests.bench.audit.audited import audited, different
from tests.bench.audit.test_audit_ranks import train_together
from tests.runtime.conftest import in_process as in_process
from tests.slow import every


def halved_once(begin: Any, self: Any, *about: Any) -> Any:
    """Halve second moments where the last epoch begins."""
    done = begin(*about)
    for state in self.replica.optimizer.state.values() if about[0] == self.job.epochs - 1 else ():
        state["exp_avg_sq"].div_(2)
    return done


@pytest.mark.parametrize("mode", every(1, ["nccl_sync", "zero2"]))
def test_what_changes_where_an_epoch_begins_is_named(
    tmp_path: Path, in_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with monkeypatch.context() as patch:
        wrapped(TrainingLoop, "begin", halved_once)(patch)
        job, records = train_together(tmp_path, mode, ADAM)
    found = different(audited(job, records))
    assert any("exp_avg_sq changed after" in line and "the beginning of epoch" in line for line in found), found
