"""torchft's DistributedDataParallel is held to the oracle, its LocalSGD and DiLoCo to their closed forms.

torchft is an extra: pip install 'elche-bench[torchft]'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.prove import ranks
from bench.prove.entrants import SERVED, Entrant, ProofEntry
from bench.prove.oracle import OracleCourse, PlainTrainer
from bench.prove.windows import replay_windows, window
from ddp.backends import BACKENDS
from ddp.core.policies import POLICIES
from ddp.core.settings.averaging import Averaging
from tests.conformance import entrants
from tests.conformance.entrants import course
from tests.conformance.test_oracle import CLOSE_DOUBLE, distance, truth

pytestmark = pytest.mark.skipif("torchft" not in BACKENDS, reason="torchft is not installed")
TORCHFT = Entrant("torchft", "auto", SERVED, exact=2)
CELLS = [("mlp", "AdamW", 2), ("resnet_graph", "momentum", 2), ("lenet", "SGD", 2), ("resnet_graph", "AdamW", 3)]
NEAR = 2e-7
"""Most that a parameter may be off: torchft averages in float32, the closed form in double precision."""


@pytest.mark.timeout(900)
def test_ddp_is_the_replay_of_its_ranks(tmp_path: Path) -> None:
    data = entrants.save_data(tmp_path)
    runs = [course(model, optimizer, size, data, exact=size <= 2) for model, optimizer, size in CELLS]
    entrants.train([(TORCHFT, run) for run in runs], tmp_path)
    for number, run in enumerate(runs):
        found, exact = entrants.trained(number, run.world_size, tmp_path), truth(run, SERVED)
        assert all(digests == found.digests[0] for digests in found.digests), f"{CELLS[number]}: ranks differ"
        off = distance(found, exact)
        if run.world_size <= TORCHFT.exact:
            assert found.digests[0] == exact.digests[0], f"{CELLS[number]}: off by {off}"
        else:
            assert off <= CLOSE_DOUBLE, f"{CELLS[number]}: off by {off}"


def diloco(run: OracleCourse, averaging: Averaging) -> Iterator[list[dict[str, Tensor]]]:
    """Yield the states of all ranks after each average, by plain SGD inside and the formula of the paper outside."""
    replicas = [PlainTrainer(run) for _ in range(run.world_size)]
    last = {name: value.detach().clone() for name, value in replicas[0].model.named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in last.items()}
    lr, momentum = averaging.outer_rates
    for number in range(run.steps):
        weights = []
        for rank, plain in enumerate(replicas):
            batches = window(run, number, rank)
            weights.append(sum(batch.samples for batch in batches))
            for batch in batches:
                plain.schedule(run.seen(number))
                plain.step(plain.passes(batch)[1][0])
        with torch.no_grad():
            for name, before in last.items():
                own = [dict(plain.model.named_parameters())[name] for plain in replicas]
                mean = sum(value * weight for value, weight in zip(own, weights, strict=True)) / sum(weights)
                gradient = before - mean
                velocity[name] = momentum * velocity[name] + gradient
                last[name] = before - lr * (gradient + momentum * velocity[name])
                for value in own:
                    value.copy_(last[name])
        yield [plain.model.state_dict() for plain in replicas]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("outer", ["none", "nesterov"])
def test_local_steps_are_their_closed_form(outer: str, tmp_path: Path) -> None:
    """Three ranks train one or two batches each between averages, so that weights differ."""
    run, averaging = course("mlp", "SGD", 3, entrants.save_data(tmp_path)), Averaging(outer=outer)
    plain = (states for _, states in replay_windows(run, False)) if outer == "none" else diloco(run, averaging)
    expected = tmp_path / "truth"
    expected.mkdir()
    for number, states in enumerate(plain):
        for rank, state in enumerate(states):
            torch.save(state, expected / f"{number}-{rank}.pt")
            (expected / f"{number}-{rank}.sha256").write_text("", encoding="utf-8")
    policy = POLICIES["cadence"]()
    ranks.train([ProofEntry(TORCHFT, run, policy, expected, averaging=averaging)], tmp_path)
    found = ranks.trained(0, 3, tmp_path)
    assert all(digests == found.digests[0] for digests in found.digests), "ranks differ after an average"
    assert max(max(apart) for apart in found.apart) <= NEAR
