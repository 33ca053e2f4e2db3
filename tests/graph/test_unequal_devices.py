"""A graph on devices of unequal speed, and the loader that feeds them: who gets how much of a batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ddp.core.messages.commands import Plan
from ddp.core.messages.events import Ready, RoundClosed, Slice
from ddp.graph import DataLoader
from tests.graph.oracle import data, made
from tests.graph.several import backward, on, plain


def test_the_balancer_gives_a_slow_device_less() -> None:
    graph = on(2, speeds=(1.0, 0.1), max_anchor=0)
    for seed in range(400):
        backward(graph, *data(64, seed))
        graph.step()
        if graph.chunk_ratios()[0] > 0.6:  # after 10 steps, on a busy machine some time later
            break
    assert graph.chunk_ratios()[0] > 0.6
    assert graph.throughput()[0] > graph.throughput()[1]
    backward(graph, *data(64))
    assert graph.shard_sizes()[0] > 38


@pytest.mark.parametrize(
    ("config", "on_"),
    [
        ({}, False),
        ({"speeds": (1.0, 0.5)}, True),
        ({"speed_hint": (1.0, 0.4)}, True),
        ({"speed_hint": (1.0, 1.0)}, False),
        ({"max_anchor": 5}, True),
        ({"speeds": (1.0, 0.5), "max_anchor": 0}, False),
    ],
)
def test_el_che_where_devices_are_unequal(config: dict[str, Any], on_: bool) -> None:
    assert on(2, **config).has_el_che() == on_


def test_el_che_goes_by_the_devices_that_the_graph_is_distributed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `setup_with`, or all GPUs, were looked at, and a call of `distribute` names others."""
    monkeypatch.setattr("ddp.graph.config.heterogeneous", lambda devices: len(devices) == 2)
    graph = plain()
    graph.set_data_loader(DataLoader(data(80), batch_size=8, names=["point", "class"]), "point")
    graph.distribute(plain, ["cpu", "cpu"])
    assert graph.has_el_che()


def test_el_che_gives_a_slow_device_fewer_batches_and_records_it() -> None:
    records: list[Any] = []
    graph = on(2, speeds=(1.0, 0.2), max_anchor=2, timeline=lambda record, at: records.append(record))
    graph.set_data_loader(DataLoader(data(800), batch_size=8, names=["point", "class"]), "point")
    assert graph.batch_counts() == [2, 2]
    for batch in graph.epoch(0):
        F.cross_entropy(graph.forward_batch(batch), batch["class"]).backward()  # type: ignore[no-untyped-call]
        graph.step()
    counts = graph.batch_counts()
    assert graph.chunk_ratios() == pytest.approx([count / sum(counts) for count in counts])
    windows = [record for record in records if isinstance(record, RoundClosed)]
    assert len(windows) == graph.training_step()
    assert sum(sum(window.steps) for window in windows) == 100
    steps = [sum(window.steps[member] for window in windows) for member in range(2)]
    assert steps[0] > 1.5 * steps[1]  # of all windows, as in one of them the other may have been held up
    assert {type(record) for record in records} == {Ready, Slice, Plan, RoundClosed}
    assert {r.kind for r in records if isinstance(r, Slice)} >= {"forward", "backward", "optimizer", "exchange", "data"}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_loader_brings_every_sample_once_and_the_members_fit(size: int) -> None:
    x, y = data(50)
    graph = on(size, made(norm=False), plain)
    graph.set_data_loader(DataLoader((x, y), batch_size=4))
    seen: Counter[tuple[float, ...]] = Counter()
    for batch in graph.epoch(1):
        assert len(batch["input"]) == len(batch["target"]) == len(batch)
        seen.update(tuple(row.tolist()) for row in batch["input"])
        graph.eval()
        torch.testing.assert_close(graph.forward_batch(batch), graph(batch["input"]))
    assert seen == Counter(tuple(row.tolist()) for row in x)
    first, again, other = (next(b["input"] for b in graph.epoch(n)) for n in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_data_set_of_dictionaries_and_a_last_batch_left_out() -> None:
    class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 11

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"point": torch.full((6,), float(index)), "number": torch.tensor(index)}

    graph = on(2, made(norm=False), plain)
    graph.set_data_loader(
        DataLoader(Rows(), batch_size=4, names=["point", "number"], drop_last=True, shuffle=False), "point"
    )
    batches = list(graph.epoch(0))
    assert [len(batch) for batch in batches] == [8]
    assert batches[0]["number"].tolist() == list(range(8))
    assert graph.forward_batch(batches[0]).shape == (8, 3)
