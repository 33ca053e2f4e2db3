"""Optimizers that averages have begin anew: the audit finds one that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddp.core.settings.averaging import Averaging
from ddp.replica.optim.optimizer_state import InnerOptimizer
from ddp.virtual.row_optimizer import RowOptimizer
from tests.bench.audit.audit_breaks import ADAM, wrapped
from tests.bench.audit.audited import audited, different
from tests.bench.audit.test_audit_at_once import RATED, train_at_once
from tests.bench.audit.test_audit_ranks import train_together
from tests.runtime.conftest import in_process as in_process

RESET = Averaging(optimizer_reset=True)
LINE = "the optimizer's step counted"


def kept_on(reset: Any, self: InnerOptimizer) -> None:
    """Begin nothing anew."""


def count_kept(reset: Any, self: RowOptimizer, number: int) -> None:
    count = self.steps[number].clone()
    reset(number)
    self.steps[number] = count


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["nccl_cadence", "cpu_async"])
@pytest.mark.parametrize("broken", [False, True])
def test_an_optimizer_that_goes_on_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, broken: bool
) -> None:
    with monkeypatch.context() as patch:
        if broken:
            wrapped(InnerOptimizer, "reset", kept_on)(patch)
        made = train_together(tmp_path, mode, ADAM, averaging=RESET)
    found = different(audited(*made))
    assert any(LINE in line for line in found) if broken else found == [], found


@pytest.mark.parametrize("broken", [False, True])
def test_so_is_that_of_a_virtual_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    with monkeypatch.context() as patch:
        if broken:
            wrapped(RowOptimizer, "reset", count_kept)(patch)
        made = train_at_once(tmp_path, "cadence", "nccl", RATED, averaging=RESET)
    found = different(audited(*made))
    assert any(LINE in line for line in found) if broken else found == []
