"""A choice of `virtual.path` that the job does not allow is a mistake of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.base.exitcodes import Exit
from bench.command.cli import dispatch


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("model=resnet_graph mode=virtual_nccl_sync", "the model has buffers"),
        ("model=mlp mode=virtual_nccl_cadence train.precision=bf16", "train.accumulate, precision or compile"),
        ("model=mlp mode=virtual_nccl_sync train.accumulate=2", "train.accumulate, precision or compile"),
    ],
)
def test_a_path_that_cannot_train_the_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    """It was called a defect of the harness, and left empty folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    more = ("world_size=3", "virtual.path=vectorised", "train.steps=2", "report=false", "validate=false")
    assert dispatch([*words.split(), *more]) == Exit.USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"bench: virtual.path=vectorised: {reason}")
    assert error.endswith("; use virtual.path=sequential\n")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
