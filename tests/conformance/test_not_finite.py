"""`bench prove`: what is not finite on one side differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.prove.entrants import distance, gap, largest
from bench.prove.proof import CLOSE, SUMMED, Proof, StepDifferences
from tests.conformance.test_prove import OWN, PLAIN
from tests.warm import Warm


def test_an_engine_whose_gradients_are_no_numbers_is_not_called_exact(warm: Warm, tmp_path: Path) -> None:
    """Python's `max` had passed over NaN: in a later tensor, of a later step."""
    in_ranks = "__import__('multiprocessing').current_process().daemon"
    spoilt = f"{in_ranks} and self.out.bias.register_hook(lambda gradient: gradient * float('nan'))"
    (tmp_path / "bad.py").write_text(OWN.format(name="bad", about="NaN in ranks", **PLAIN | {"tie": spoilt}))
    words = ("model=bad.py", "mode=nccl_sync,nccl_cadence", "--json", "out.json")
    code, out, err = warm.start(tmp_path, "-m", "bench", "prove", *words).result()
    assert code == 1, out + err
    proofs = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)["proofs"]
    assert [(each["verdict"], each["replicas_equal"]) for each in proofs] == [("different", True)] * 2


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("own", "oracle", "apart"),
    [
        (NAN, 1.0, INF),
        (1.0, NAN, INF),
        (INF, 1.0, INF),
        (INF, -INF, INF),
        (NAN, NAN, 0.0),
        (INF, INF, 0.0),
        (1.0, 0.5, 0.5),
        (1.0, 4.0, 0.75),
    ],
)
def test_what_is_not_finite_on_one_side_is_infinitely_far(own: float, oracle: float, apart: float) -> None:
    first = torch.zeros(3)
    states = ({"first": first, "second": torch.tensor([0.0, side])} for side in (own, oracle))
    assert distance(*states) == apart


def test_a_large_loss_is_rounded_in_proportion() -> None:
    """The limits were absolute, so a sound mode was called different if its loss was above a thousand."""
    assert gap(1783.0 + 6.1e-5, 1783.0) < SUMMED < gap(1783.0 + 0.1, 1783.0)
    assert gap(torch.tensor([1e4, 1.0 + 1e-6]), torch.tensor([1e4, 1.0])) < CLOSE


def test_no_step_and_no_rank_hides_behind_the_first() -> None:
    steps = [StepDifferences(step, value, 0.0, 0.0) for step, value in enumerate((0.0, NAN, 1.0))]
    assert Proof("nccl_sync", 2, "", steps=steps).worst("gradients") == INF
    assert largest([0.0, NAN]) == INF
    assert largest([]) is None
