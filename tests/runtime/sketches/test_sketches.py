"""Laws of sketches: linear, of each element in its place, and no further off than roundings can make them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bench.validate.sketches.linear import Combined, apart, combine, mean
from ddp.core.messages.event_parts import SketchGroup
from ddp.core.periodic.sketching import AIM, ENOUGH_S, LEAST, draw, is_drawn
from ddp.replica.evidence.sketch_kernel import BLOCK
from ddp.replica.evidence.sketcher import MOST, Sketcher, _elsewhere
from ddp.replica.evidence.step_sketches import MOST as SHARE
from ddp.replica.evidence.step_sketches import STEPS, StepSketches, whole
from ddp.replica.memory.flat import FlatState, swapped
from ddp.sketches import decode, encode


class Net(nn.Module):
    """One tensor of several blocks, one of one, and statistics."""

    def __init__(self, elements: int = 3 * BLOCK + 17, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.large, self.other = nn.Parameter(torch.randn(elements)), nn.Parameter(torch.randn(elements))
        self.small = nn.Parameter(torch.randn(3))
        self.register_buffer("mean", torch.randn(5))
        self.register_buffer("count", torch.tensor(3))
        self.to(dtype)


def made(seed: int, dtype: torch.dtype = torch.float32, key: int = 1) -> tuple[Net, FlatState, Sketcher]:
    torch.manual_seed(seed)
    net = Net(dtype=dtype)
    state = FlatState(net)
    return net, state, Sketcher(net, state, torch.optim.SGD(net.parameters(), lr=0.1), key)


def off(sketcher: Sketcher, text: str, wanted: Combined, roundings: float = 4.0) -> str:
    difference = apart(sketcher.groups, text, wanted, roundings)
    return "" if difference is None else difference.group


def exactly(text: str) -> Combined:
    return combine([(1.0, decode(text))])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=5), st.integers(0, 9))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_sketch_of_a_mean_is_the_mean_of_the_sketches(dtype: torch.dtype, samples: list[int], seed: int) -> None:
    states = [made(seed + rank, dtype)[1:] for rank in range(len(samples))]
    parts = [(float(n), sketcher.model()) for n, (_, sketcher) in zip(samples, states, strict=True)]
    (first, sketcher), total = states[0], sum(samples)
    for place, section in enumerate(first.sections):
        values = [
            n / total * state.sections[place].values.double() for n, (state, _) in zip(samples, states, strict=True)
        ]
        section.values.copy_(torch.stack(values).sum(0))
    assert off(sketcher, sketcher.model(), mean(parts)) == ""
    if dtype in (torch.float32, torch.float64) and len(samples) > 1:
        wrong = [(parts[0][0] + 0.001 * total, parts[0][1]), *parts[1:]]
        assert off(sketcher, sketcher.model(), mean(wrong)) != ""


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3 * BLOCK), st.integers(1, 3 * BLOCK), st.integers(1, BLOCK), st.integers(0, 99))
def test_slices_in_each_others_place_show(first: int, second: int, size: int, key: int) -> None:
    """Wherever they begin, and if both begin a block."""
    for a, b in ((first, second), (0, BLOCK * (1 + second % 2))):
        net, _, sketcher = made(0, key=key)
        before = sketcher.model()
        with torch.no_grad():
            flat, n = net.large, min(size, net.large.numel() - max(a, b), abs(a - b) or 1)
            kept = flat[a : a + n].clone()
            flat[a : a + n] = flat[b : b + n]
            flat[b : b + n] = kept
        assert off(sketcher, sketcher.model(), exactly(before)) == ("large" if a != b and n > 0 else "")


@pytest.mark.parametrize("key", range(20))
def test_whole_tensors_in_each_others_place_show(key: int) -> None:
    net, state, sketcher = made(0, key=key)
    before = exactly(sketcher.model())
    with torch.no_grad():
        kept = net.large.clone()
        net.large.copy_(net.other)
        net.other.copy_(kept)
    assert off(sketcher, sketcher.model(), before) in ("large", "other")
    assert state.sections[0].kind == "parameters"


@pytest.mark.parametrize("key", range(20))
@pytest.mark.parametrize("change", [1e-5, -1e-2])
def test_one_element_shows(key: int, change: float) -> None:
    """Of 12,000, and by a hundred-thousandth of the tensor's size."""
    net, _, sketcher = made(0, key=key)
    before = exactly(sketcher.model())
    size = float(net.large.detach().norm())
    with torch.no_grad():
        net.large[BLOCK + key] += change * size
        net.get_buffer("mean")[2] += abs(change)
    after = sketcher.model()
    assert {sketcher.groups[n].name for n in _changed(sketcher, after, before)} == {"large", "mean"}


def _changed(sketcher: Sketcher, text: str, before: Combined) -> list[int]:
    numbers = range(len(sketcher.groups))
    groups, sketch = sketcher.groups, decode(text)

    def row(n: int) -> bool:
        own = Combined(before.sums[[n]], before.magnitudes[[n]], before.sizes[[n]])
        return apart([groups[n]], encode(sketch.sums[[n]], sketch.sizes[[n]]), own, 4.0) is not None

    return [n for n in numbers if row(n)]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3 * BLOCK + 17), max_size=4), st.booleans())
def test_parts_of_a_gradient_add_up_to_it(cuts: list[int], on_device: bool) -> None:
    net, _, sketcher = made(1)
    gradient = torch.randn(net.large.numel())
    whole_sum = sketcher.step()
    whole_sum.add([(net.large, gradient, 0)])
    bounds = [0, *sorted(cuts), net.large.numel()]
    if on_device:  # what a GPU would compute
        key = sketcher._keys["large"]
        pieces = [_elsewhere(gradient[a:b], a, key, sketcher._table) for a, b in pairwise(bounds)]
        np.testing.assert_allclose(np.sum(pieces, axis=0), whole_sum._total[0], rtol=1e-9, atol=1e-9)
        return
    parts = sketcher.step()
    parts.add((net.large, gradient[a:b], a) for a, b in pairwise(bounds))
    np.testing.assert_allclose(parts._total, whole_sum._total, rtol=1e-9, atol=1e-9)


def test_values_that_stand_in_for_a_state_are_sketched_in_its_place() -> None:
    _, state, sketcher = made(2)
    pairs = [(section.values, section.values.clone()) for section in state.sections]
    before = sketcher.model()
    with swapped(pairs):
        assert sketcher.model() == before
    for own, other in pairs:
        other.copy_(own.half())
    with swapped(pairs):
        assert off(sketcher, sketcher.model(), exactly(before)) != ""
    assert sketcher.model() == before
    state.lay()
    assert sketcher.model() == before


def test_a_state_is_left_alone_and_so_are_random_numbers() -> None:
    net, state, sketcher = made(3)
    digest, drawn = state.digest(), torch.get_rng_state()
    sketcher.model()
    sketcher.step().add(whole(net.parameters()))
    assert state.digest() == digest
    assert torch.equal(torch.get_rng_state(), drawn)


def test_neighbours_share_a_group_where_there_are_many() -> None:
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(50)), *(nn.BatchNorm1d(2) for _ in range(10)))
    state = FlatState(net)
    sketcher = Sketcher(net, state, torch.optim.SGD(list(net.parameters())[:10], lr=0.1), 1)
    kinds = [group.kind for group in sketcher.groups]
    assert kinds == ["parameters"] * kinds.count("parameters") + ["buffers"] * kinds.count("buffers")
    assert kinds.count("parameters") <= MOST["parameters"]
    assert kinds.count("buffers") <= MOST["buffers"]
    assert sum(group.elements for group in sketcher.groups) == 50 * 6 + 10 * 8
    assert sketcher.groups[0] == SketchGroup("0.weight to 3.weight", "parameters", 22, "float32", True)
    assert [group.trained for group in sketcher.groups] == [True, True] + [False] * (len(kinds) - 2)
    assert len(sketcher.model()) <= 300


def test_values_that_are_not_finite_show_where() -> None:
    net, _, sketcher = made(4)
    before = sketcher.model()
    with torch.no_grad():
        net.small[1] = float("nan")
    sketch = decode(sketcher.model())
    assert np.isfinite(sketch.sizes).tolist() == [group.name != "small" for group in sketcher.groups]
    assert off(sketcher, sketcher.model(), exactly(before)) == "small"
    for roundings in (4.0, 0.0):
        assert off(sketcher, before, exactly(sketcher.model()), roundings) == "", "what went in was not finite"


@given(st.lists(st.tuples(st.floats(-1e30, 1e30), st.floats(0.0, 1e30)), max_size=8))
def test_the_text_holds_sums_in_single_precision_and_sizes_rounded_up(rows: list[tuple[float, float]]) -> None:
    sums = np.array([(value, -value) for value, _ in rows]).reshape(-1, 2)
    norms = np.array([norm for _, norm in rows])
    sketch = decode(encode(sums, norms))
    np.testing.assert_array_equal(sketch.sums, sums.astype(np.float32).astype(np.float64))
    assert ((sketch.sizes >= norms) & ((sketch.sizes <= 2 * norms) | (norms < 1e-37))).all()
    assert ((sketch.sizes == 0) == (norms == 0)).all()


@pytest.mark.parametrize("text", ["%", "AAAA", "A" * 16 + "="])
def test_what_is_no_sketch_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no sketch"):
        decode(text)


def test_sketches_of_other_groups_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="sketches have 1, 2 groups"):
        combine([(1.0, decode(encode(np.ones((n, 2)), np.ones(n)))) for n in (1, 2)])


# Which are drawn.


@pytest.mark.parametrize(
    ("rounds", "round_s"), [(30, 0.5), (150, 0.001), (1_000, 0.001), (20_000, 0.0005), (3_000, 0.019)]
)
def test_enough_rounds_are_drawn_and_not_too_many(rounds: int, round_s: float) -> None:
    drawn = [n for n in range(rounds) if is_drawn(n, n * round_s, n / rounds)]
    least = min(rounds, LEAST)
    assert drawn[0] == 0
    assert len(drawn) >= least
    assert len(drawn) <= max(1.5 * AIM, 1.1 * rounds * round_s / ENOUGH_S + 1)
    if round_s >= ENOUGH_S or rounds <= LEAST:
        assert len(drawn) == rounds
    else:
        gaps = np.diff(drawn)
        assert gaps.max() < 12 * rounds / len(drawn), "they are spread over the run"


def test_steps_are_drawn_alike_by_all_ranks_and_not_by_all_runs() -> None:
    _, _, sketcher = made(5)
    runs = [_drawn(StepSketches(sketcher, key, 10_000)) for key in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert all(steps[0] == 0 and 0.6 * STEPS < len(steps) < 1.5 * STEPS for steps in runs)
    assert len(_drawn(StepSketches(sketcher, 1, 0))) == 10_000
    assert 0.8 * SHARE < len(_drawn(StepSketches(sketcher, 1, 100))) / 10_000 < 1.2 * SHARE


def _drawn(sketches: StepSketches) -> list[int]:
    steps = []
    for number in range(10_000):
        sketches.begin()
        if sketches.drawn:
            steps.append(number)
    return steps


def test_draws_are_even() -> None:
    values = np.array([draw(key, number) for key in range(4) for number in range(5_000)])
    assert np.histogram(values, 20, (0.0, 1.0))[0].std() < 60


def test_gradients_without_elements_count_for_nothing() -> None:
    """They had no name, and a step with one failed."""
    net = nn.Linear(2, 2)
    filled, net.empty = list(net.parameters()), nn.Parameter(torch.empty(0, 2))
    sketcher = Sketcher(net, FlatState(net), torch.optim.SGD(net.parameters(), lr=0.1), 1)
    texts = []
    for parameters in (filled, net.parameters()):
        step = sketcher.step()
        step.add((parameter, torch.ones_like(parameter), 0) for parameter in parameters)
        texts.append(step.text())
    assert texts[0] == texts[1]
