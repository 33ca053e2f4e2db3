"""The same programs under torch's DistributedDataParallel and under ours, two ranks in two processes: the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parallel.programs import ALIKE, OURS_AGREES, TRANSPORTS, run
from tests.processes import exit_codes

Seen = list[tuple[str, Tensor | None]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank; torch's, or ours by transport; by program."""
    folder = tmp_path_factory.mktemp("like_torch")
    assert exit_codes(run, [(rank, folder) for rank in range(2)], limit_s=100.0) == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def first_difference(one: Seen, other: Seen) -> str:
    """Where two ranks, or two wrappers, begin to differ; empty if nowhere."""
    for number, ((name, mine), (also, theirs)) in enumerate(zip(one, other, strict=True)):
        assert name == also
        alike = mine is theirs if mine is None or theirs is None else torch.equal(mine, theirs)
        if not alike:
            return f"{name}, seen as number {number}: {mine} and {theirs}"
    return ""


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ALIKE)
def test_a_program_ends_in_the_same_bits_as_under_torchs(name: str, transport: str, runs: list[dict[str, Any]]) -> None:
    for rank in runs:
        theirs, ours = rank["torch"][name], rank[transport][name]
        assert ours["error"] == ""
        if "modified by an inplace operation" in theirs["error"] and torch.__version__ < "2.15":
            pytest.skip("PyTorch's own fails in this version")  # seen in 2.11
        assert theirs["error"] == ""
        assert len(ours["seen"]) == len(theirs["seen"]) > 0
        assert first_difference(ours["seen"], theirs["seen"]) == ""


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", OURS_AGREES)
def test_where_torchs_ranks_come_apart_ours_agree(name: str, transport: str, runs: list[dict[str, Any]]) -> None:
    """As `docs/reference/distributed.md` says."""
    one, other = runs
    for whose in ("torch", transport):
        assert (one[whose][name]["error"], other[whose][name]["error"]) == ("", "")
    assert first_difference(one["torch"][name]["seen"], other["torch"][name]["seen"])
    assert first_difference(one[transport][name]["seen"], other[transport][name]["seen"]) == ""
