"""Compiled models, and deterministic algorithms."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from bench.command.verbs.doctor import examine
from ddp.core.errors import RankFailed
from ddp.core.settings.steps import StepSettings
from ddp.engine.modes import modes
from ddp.engine.step_checks import check_step
from ddp.process.determinism import deterministic
from ddp.replica import abilities, passes
from ddp.replica.abilities import lacks_compiler
from ddp.replica.task import Job
from tests.runtime import toy
from tests.runtime.conftest import Play

CPU = torch.device("cpu")
COMPILED = StepSettings(compile=True)


def test_a_compiled_model_is_trained_as_it_is_written(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, where the compiler makes the same operations; all of it is compiled before the run is ready, and the
    running statistics know nothing of that."""
    monkeypatch.setattr(passes, "COMPILER", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    graphs: list[int] = []
    warm_up = passes.StepPasses.warm_up

    def counted(self: Any, *made_of: Any) -> None:
        warm_up(self, *made_of)
        graphs.append(counters["stats"]["unique_graphs"])

    monkeypatch.setattr(passes.StepPasses, "warm_up", counted)
    task = partial(toy.task, norm=True)
    plain = play("sync", "nccl", task, world_size=1)
    compiled = play("sync", "nccl", task, world_size=1, step=COMPILED)
    assert len(graphs) == 1
    assert graphs[0] == counters["stats"]["unique_graphs"] >= 1
    for name, value in plain.state().items():
        torch.testing.assert_close(compiled.state()[name], value)


@pytest.mark.slow
def test_a_compiled_model_draws_as_it_is_written() -> None:
    """Dropout of code that inductor makes is that of the model as it is, which an audit runs."""
    job = SimpleNamespace(step=COMPILED, batch_size=33)
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1), nn.Dropout(0.5))
        if compiled:
            passes.StepPasses(cast(Job, job), model, list(model.parameters()), CPU)
        torch.manual_seed(1)
        for _ in range(2):
            model(torch.ones(33, 8) * torch.arange(33.0)[:, None]).sum().backward()
        results.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)  # other draws: off by more than half


def test_what_is_left_of_an_epoch_is_compiled_for(play: Play) -> None:
    """Of 203 samples: a step of one rank ends with 11 of 16, in halves; one of two with 11 of 32, 6 and 5."""
    job = replace(play("sync", "nccl", world_size=1, epochs=1, batch_size=16).job, step=StepSettings(2), world_size=2)
    model = toy.net(False)
    found = passes.StepPasses(job, model, list(model.parameters()), CPU)
    assert found.sizes(job, 203) == [8, 6, 5]


def test_modes_that_cannot_compile_say_which_can() -> None:
    ways = modes()
    for name in ("zero3", "torch_fsdp", "graph_sync"):
        with pytest.raises(ValueError, match=f"compile=true with mode={name}, which cannot do it: .*nccl_sync"):
            check_step(COMPILED, ways[name], 2)
    check_step(COMPILED, ways["zero2"], 2)


def test_what_is_lacking_is_said(
    play: Play, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert lacks_compiler(CPU) == "no C++ compiler (no-such-compiler)"
    with pytest.raises(RankFailed, match="compile=true does not work on cpu: no C"):
        play("sync", "nccl", world_size=1, step=COMPILED)
    monkeypatch.setattr(abilities, "lacks_half", lambda precision, device: f"no {precision}")
    with pytest.raises(RankFailed, match="precision=bf16 does not work on cpu: no bf16; leave it out"):
        play("sync", "nccl", world_size=1, step=StepSettings(precision="bf16"))
    examine()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["precision", "fp16", "no", "no", "fp16"] in lines
    assert ["compiler", "no", "no", "C++", "compiler", "(no-such-compiler)"] in lines


def test_deterministic_algorithms_end_with_the_run(play: Play) -> None:
    strict: list[bool] = []

    def noting(fraction: float) -> float:
        strict.append(torch.are_deterministic_algorithms_enabled())
        return 1.0

    play(
        "sync",
        "nccl",
        partial(toy.task, schedule=noting),
        world_size=1,
        epochs=1,
        step=StepSettings(deterministic=True),
    )
    assert all(strict)
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic(False):
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("name", ["compile", "deterministic"])
def test_a_word_is_no_switch(name: str) -> None:
    with pytest.raises(ValueError, match="must be True or False"):
        StepSettings(**{name: "off"})  # type: ignore[arg-type]
