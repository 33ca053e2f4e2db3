"""What a sample costs: from the step that is measured to the result."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench.audit.costs import _recurrent
from bench.results.analysis.stream import sort
from bench.results.analysis.work import PEAKS, _peak, memory, work
from bench.results.schema import LauncherInfo
from ddp.core.messages.event_parts import StepWork
from ddp.core.messages.events import Finished
from ddp.core.settings.steps import StepSettings
from ddp.data.epoch_order import order
from ddp.permutation import derive
from ddp.replica.figures import StepFigures
from ddp.replica.recurrent_flop import FUSED
from ddp.replica.task import Job
from tests.bench.streams import make_metrics, make_spec
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.runtime.conftest import in_process as in_process
from tests.runtime.conftest import play as play

pytestmark = pytest.mark.usefixtures("in_process")

BF16 = {"train": {"precision": "bf16"}}
PARAMETERS = 6 * 12 + 12 + 12 * 2 + 2


def gradient() -> float:
    """The norm of the first gradient, on the whole batch."""
    torch.manual_seed(derive(3, "init"))
    model, (inputs, targets) = toy.net(False), toy.data()
    chosen = order(3, 0, toy.SAMPLES)[:16]
    nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
    return float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


@pytest.mark.parametrize("backend", ["nccl", "zero1", "zero2", "zero3", "torch_zero1"])
def test_gradient_norm_and_memory_by_kind(play: Play, backend: str) -> None:
    """Of the mean gradient, shards or not; a rank has half of what is sharded, to a parameter."""
    run = play("sync", backend, partial(toy.task, optimizer="Adam"), max_grad_norm=0.01, deadline_s=60.0)
    stream = sort(run.records, 0.0)
    metrics = make_metrics(make_spec("nccl_sync")).model_copy(update={"backend": backend, "world_size": 2})
    found = work(stream, metrics, {})
    assert found is not None
    assert found.gradient_norm is not None
    assert found.gradient_norm.first == pytest.approx(gradient(), rel=1e-5)
    assert found.flop_per_sample is found.tokens_per_s is found.peak_share is None
    by_kind = memory(2, stream)
    whole = {"nccl": "pgo", "zero1": "pg", "torch_zero1": "pg", "zero2": "p", "zero3": ""}[backend]
    for kind, times, values in (
        ("p", 1, by_kind.parameter_bytes),
        ("g", 1, by_kind.gradient_bytes),
        ("o", 2, by_kind.optimizer_bytes),
    ):
        assert values is not None
        each = 4 * PARAMETERS * times / (1 if kind in whole else 2)
        assert all(value == pytest.approx(each, rel=0.35) for value in values), (kind, values, each)
    assert by_kind.activation_bytes is None


@pytest.mark.parametrize("step", [StepSettings(), StepSettings(accumulate=2), StepSettings(precision="fp16")])
def test_work_is_counted_where_steps_are_profiled(play: Play, step: StepSettings) -> None:
    """A linear layer: two operations a weight and sample forward, and as many for each gradient; none of the inputs'."""
    run = play("sync", "nccl", world_size=1, epochs=1, step=step, profile_steps=1)
    plain = play("sync", "nccl", world_size=1, epochs=1, step=step)
    assert run.digests == plain.digests
    (ended,) = run.of(Finished)
    assert ended.work.flop_per_sample == 2 * (2 * 6 * 12 + 3 * 12 * 2)
    assert ended.work.activation_bytes > 0
    assert plain.of(Finished)[0].work.flop_per_sample is None


def test_share_of_the_peak_is_of_known_devices() -> None:
    name = next(iter(PEAKS))
    spec = make_spec("nccl_sync")
    metrics = make_metrics(spec).model_copy(update={"devices": ["cuda:0", "cuda:1"], "env": {"gpus": [name] * 2}})
    rate = metrics.throughput.samples_per_s
    assert rate is not None
    stream = sort([Finished(9.0, 0, "", 0, 0, work=StepWork((), flop_per_sample=1e9, tokens=32))], 0.0)
    found = work(stream, metrics, BF16)
    assert found is not None
    assert found.tokens_per_s == 32 * rate
    assert found.peak_share == pytest.approx(1e9 * rate / (2 * PEAKS[name]["bf16"]))
    hosts = LauncherInfo(name="slurm", job="", hosts=["a", "b"], clock_error_s=[0, 0])
    apart = metrics.model_copy(update={"launcher": hosts, "devices": ["cuda:0"] * 2})
    assert _peak(apart, BF16) == 2 * PEAKS[name]["bf16"], "the first device of either host"
    hosts = hosts.model_copy(update={"hosts": ["a", "a"]})
    assert _peak(apart.model_copy(update={"launcher": hosts}), BF16) is None
    unknown = work(stream, metrics.model_copy(update={"env": {"gpus": ["another"]}}), {})
    assert unknown is not None
    assert unknown.peak_share is None


@pytest.mark.parametrize(("first", "tokens"), [(nn.Embedding(5, 2), 7), (nn.Linear(7, 2), 0)])
def test_only_text_has_tokens(first: nn.Module, tokens: int) -> None:
    """Columns of a table of whole numbers were counted as tokens."""
    job = Job(toy.task, 9, 8, 0, 1, None, "nccl", Path())  # type: ignore[arg-type]
    model = nn.Sequential(first, nn.ReLU())
    figures = StepFigures(job, model, torch.optim.SGD(model.parameters(), 0.1), 10)
    with figures.counting((torch.zeros(3, 7, dtype=torch.int64),), 3):
        pass
    assert figures.work().tokens == tokens


@pytest.mark.parametrize("wanted", [True, False])
def test_fused_recurrent_layers_are_counted(wanted: bool) -> None:
    """Each token times the matrices of both layers, thrice: forward, and backward for inputs and weights."""
    lstm = nn.LSTM(5, 7, 2, batch_first=True)
    inputs = torch.randn(3, 4, 5, requires_grad=True)
    with FlopCounterMode(display=False, custom_mapping=FUSED if wanted else {}) as counter:
        lstm(inputs)[0].sum().backward()
    matrices = sum(p.numel() for p in lstm.parameters() if p.dim() == 2)
    assert (counter.get_total_flops() == 3 * 2 * 3 * 4 * matrices) == wanted


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_audit_counts_recurrent_layers_alike(kind: type[nn.RNNBase]) -> None:
    counts = []
    for mapping in (FUSED, _recurrent()):
        with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            kind(5, 7, 2, batch_first=True)(torch.randn(3, 4, 5))[0].sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
    matrices = [(5, 7), (7, 7), (7,), (7,)]
    assert {of((3, 4, 5), list(matrices)) for of in list(_recurrent().values())[2::2]} == {2 * 12 * (35 + 49)}, (
        "on a GPU"
    )


def test_a_sparse_batch_is_counted_like_any_other() -> None:
    """It has no memory of its own to leave out."""
    model = nn.Linear(4, 1)
    job = replace(Job(toy.task, 9, 8, 0, 1, None, "nccl", Path()), profile_steps=1)  # type: ignore[arg-type]
    figures = StepFigures(job, model, torch.optim.SGD(model.parameters(), 0.1), 10)
    batch = torch.eye(4)[:2].to_sparse()
    with figures.counting((batch,), 2):
        (torch.sparse.mm(batch, model.weight.t()) + model.bias).sum().backward()
    assert figures.work().flop_per_sample is not None
