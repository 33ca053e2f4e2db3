"""Wrong use of a wrapped model, and ranks that disagree: an error on all ranks that says what to do."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ddp import DistributedDataParallel, RankLost, wrap
from ddp.parallel.group import Group
from tests.held_up import in_time
from tests.parallel.conftest import Together, run_together
from tests.parallel.wrapped import batch, loss, net, other, train


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"inner": 41},
            r"parameter 0.weight is float32 \[41, 5\] on rank 1, parameter 0.weight is float32 \[40, 5\] on rank 0",
        ),
        ({"dtype": torch.float64}, r"parameter 0.weight is float64 \[40, 5\] on rank 1"),
        ({"layers": 1}, r"rank 0 has parameter 1.weight, rank 1 has not \(2 parts on rank 1, 4 on rank 0\)"),
    ],
)
def test_unequal_models_are_refused_on_all_ranks(changes: dict[str, Any], said: str) -> None:
    def act(group: Group) -> None:
        DistributedDataParallel(other(**(changes if group.rank == 1 else {})), process_group=group)

    for result in run_together(3, act):
        with pytest.raises(ValueError, match=f"ranks do not agree: {said}"):
            raise result


def test_unequal_settings_are_refused() -> None:
    results = run_together(
        2, lambda group: DistributedDataParallel(net(), process_group=group, average=group.rank == 0)
    )
    for result in results:
        with pytest.raises(ValueError, match="average is False on rank 1, True on rank 0"):
            raise result


def test_a_second_wrap_is_refused(together: Together) -> None:
    def act(group: Group) -> None:
        model = net()
        wrapped = DistributedDataParallel(model, process_group=group)
        for again in (model, wrapped, nn.Sequential(model[0])):
            with pytest.raises(
                ValueError, match=r"parameter (module\.)?0(\.0)?\.weight is wrapped already: .* use the wrapper"
            ):
                DistributedDataParallel(again, process_group=group)
        wrapped.close()
        assert len(train(group, model=model)) == 4  # and what was let go may be wrapped anew

    together(1, act)


def test_a_wrapper_that_is_gone_is_forgotten(together: Together) -> None:
    def act(group: Group) -> None:
        model = net()
        wrapped = DistributedDataParallel(model, process_group=group)
        loss(wrapped, batch(0, 0)).backward()
        del wrapped
        gc.collect()
        DistributedDataParallel(model, process_group=group)

    together(1, act)


@pytest.mark.parametrize("cap", [None, 0.0002])
def test_unequal_numbers_of_batches_are_an_error_that_says_what_to_do(cap: float | None) -> None:
    def act(group: Group) -> None:
        wrapped = DistributedDataParallel(net(), process_group=group, bucket_cap_mb=cap)
        for step in range(3 - group.rank):
            loss(wrapped, batch(group.rank, step)).backward()

    began = time.monotonic()
    one, none = run_together(2, act)
    assert none is None
    with pytest.raises(RankLost, match=r"rank 0 cannot go on: rank 1 has left; .* sync_gradients\(samples=0\)"):
        raise one
    assert in_time(began, 10.0)


def test_a_rank_that_does_not_come_is_named_after_the_time_limit() -> None:
    def act(group: Group) -> None:
        wrapped = DistributedDataParallel(net(), process_group=group)
        if group.rank == 1:
            time.sleep(3)
            return
        loss(wrapped, batch(group.rank, 0)).backward()

    with pytest.raises(RankLost, match=r"rank 1 did not come within 1 s"):
        raise run_together(2, act, timeout_s=1.0)[0]


def test_ranks_at_different_places_are_told_apart() -> None:
    def act(group: Group) -> None:
        wrapped = DistributedDataParallel(net(), process_group=group)
        if group.rank == 1:
            wrapped.sync_parameters()
        else:
            loss(wrapped, batch(group.rank, 0)).backward()

    for result in run_together(2, act):
        with pytest.raises(RankLost, match=r"they are not at the same place|has left"):
            raise result


def test_samples_said_by_some_ranks_only_are_an_error() -> None:
    def act(group: Group) -> None:
        wrapped = DistributedDataParallel(net(), process_group=group)
        if group.rank:
            wrapped.set_samples(4)
        loss(wrapped, batch(group.rank, 0)).backward()

    for result in run_together(2, act):
        with pytest.raises(ValueError, match="all must, or none"):
            raise result


def refuse(act: Callable[[Group], object], said: str, together: Together) -> None:
    def checked(group: Group) -> None:
        with pytest.raises(ValueError, match=said):
            act(group)

    together(1, checked)


def test_wrong_settings_are_refused(together: Together) -> None:
    frozen = net().requires_grad_(False)
    refuse(
        lambda g: DistributedDataParallel(frozen, process_group=g), "no parameter of this model is trained", together
    )
    refuse(
        lambda g: DistributedDataParallel(net(), process_group=g, compression="int8"), "compression must be", together
    )
    refuse(lambda g: DistributedDataParallel(net(), process_group=g, bucket_cap_mb=0), "must be positive", together)
    refuse(lambda g: DistributedDataParallel(net(), process_group=3), "what ddp.init returned", together)  # type: ignore[arg-type]
    for wrong in (-1, float("nan"), float("inf")):
        refuse(lambda g, n=wrong: DistributedDataParallel(net(), process_group=g).set_samples(n), "0 or more", together)
    sums = "this model sums"
    refuse(lambda g: DistributedDataParallel(net(), process_group=g, average=False).set_samples(1), sums, together)


@pytest.mark.parametrize(
    "wrapper", [lambda m, g: DistributedDataParallel(m, process_group=g), lambda m, g: wrap([m], group=g)]
)
def test_parts_without_dense_values_are_refused(wrapper: Any, together: Together) -> None:
    def act(group: Group) -> None:
        graph = nn.Linear(2, 2)
        graph.register_buffer("edges", torch.eye(2).to_sparse())
        for model, said in (
            (nn.LazyLinear(2), "parameter weight has no shape yet: pass a batch"),
            (graph, "buffer edges is sparse"),
        ):
            with pytest.raises(ValueError, match=said):
                wrapper(model, group)

    together(1, act)


def test_complex_parameters_are_refused(together: Together) -> None:
    def act(group: Group) -> None:
        with pytest.raises(ValueError, match="parameter weight is complex64"):
            DistributedDataParallel(nn.Linear(2, 2, dtype=torch.complex64), process_group=group)

    together(1, act)


def _unfreeze(model: nn.Linear) -> None:
    model.bias.requires_grad_(True)


def _replace(model: nn.Linear) -> None:
    model.weight = nn.Parameter(model.weight.detach().clone())


def _widen(model: nn.Linear) -> None:
    model.double()


def _add(model: nn.Linear) -> None:
    model.register_parameter("scale", nn.Parameter(torch.ones(2)))


def _fill(model: nn.Linear) -> None:
    model.gain = nn.Parameter(torch.ones(2))


def _grow(model: nn.Linear) -> None:
    model.add_module("head", nn.Linear(2, 2))


def _exchange(model: nn.Linear) -> None:
    model.inner = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_unfreeze, "bias was unfrozen"),
        (_replace, "weight was replaced or changed in type or memory format"),
        (_widen, "weight was replaced or changed in type or memory format"),
        (_add, "scale was added"),
        (_fill, "gain was added"),
        (_grow, r"head\.weight was added"),
        (_exchange, r"inner\.weight was added"),
    ],
)
def test_what_becomes_of_parameters_after_wrapping_is_an_error(
    change: Callable[[nn.Linear], None], said: str, together: Together
) -> None:
    """Their gradients stayed on each rank, and nobody said so."""

    def act(group: Group) -> None:
        model = nn.Linear(6, 2)
        model.bias.requires_grad_(False)
        model.register_parameter("gain", None)
        model.add_module("inner", nn.Linear(2, 2))
        wrapped = DistributedDataParallel(model, process_group=group)
        model.weight.requires_grad_(False)  # what is frozen later is left alone, and what comes frozen
        model.add_module("frozen", nn.Linear(2, 2).requires_grad_(False))
        wrapped(torch.ones(2, 6))
        model.weight.requires_grad_(True)
        change(model)
        with pytest.raises(ValueError, match=f"parameter {said} after the model was wrapped.*wrap the model anew"):
            wrapped(torch.ones(2, 6))

    together(2, act)


def test_arguments_of_torchs_class_are_taken_at_their_defaults_alone(together: Together) -> None:
    def act(group: Group) -> None:
        DistributedDataParallel(net(), process_group=group, dim=0, check_reduction=False, device_mesh=None)
        with pytest.raises(ValueError, match=r"mixed_precision=.*torch\.autocast"):
            DistributedDataParallel(net(), process_group=group, mixed_precision="bf16")
        with pytest.raises(TypeError, match="no argument bucket_caps"):
            DistributedDataParallel(net(), process_group=group, bucket_caps=3)

    together(1, act)
