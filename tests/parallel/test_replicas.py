"""`wrap`: replicas brought together when the loop says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ddp.parallel.group import Group, current
from ddp.parallel.replicas import wrap
from tests.parallel.conftest import Together, run_together
from tests.parallel.test_module import batch, loss, net, same, values


def grads(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def weighted(models: list[nn.Module], counts: list[float]) -> list[Tensor]:
    parts = [[g.double() for g in grads(model)] for model in models]
    total = sum(counts)
    return [
        torch.as_tensor(sum(c * g for c, g in zip(counts, column, strict=True)) / total).float()
        for column in zip(*parts, strict=True)
    ]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("counts", [None, [3.0, 1.0, 0.0, 7.0]])
def test_two_replicas_a_rank(world: int, counts: list[float] | None, together: Together) -> None:
    """Parameters are those of the first of all; gradients the mean over all, weighted by their counts."""
    count = 2 * world
    weights = [1.0] * count if counts is None else counts[:count]

    def act(group: Group) -> list[list[Tensor]]:
        models = [net(seed=10 + 2 * group.rank + replica, norm=True) for replica in range(2)]
        replicas = wrap(models, ["cpu", "cpu"], group=group)
        assert (replicas.world_size, len(replicas.devices)) == (count, 2)
        replicas.sync_params()
        for replica, model in enumerate(models):
            loss(model, batch(2 * group.rank + replica, 0)).backward()
        if counts is None:
            replicas.all_reduce_gradients()
        else:
            replicas.weighted_all_reduce_gradients(weights)
        found = [grads(model) for model in models]
        replicas.sync_buffers()
        return [*found, *(values(model) for model in models)]

    alone = [net(seed=10, norm=True) for _ in range(count)]
    for number, model in enumerate(alone):
        loss(model, batch(number, 0)).backward()
    truth = weighted(alone, weights)
    results = together(world, act)
    for first, second, *states in results:
        assert same(first, results[0][0])
        assert same(second, results[0][0])
        for own, exact in zip(first, truth, strict=True):
            torch.testing.assert_close(own, exact)
        assert all(same(state, values(alone[0])) for state in states)


def test_a_gradient_that_shares_memory_keeps_its_own_mean(together: Together) -> None:
    """The mean of one was written into the memory of both."""

    def act(group: Group) -> list[Tensor]:
        models = [nn.ParameterList([torch.zeros(2, 2), torch.zeros(2, 2)]) for _ in range(2)]
        ((models[0][0].view(-1) + models[0][1].view(-1)) * torch.arange(4.0)).sum().backward()
        models[1][0].sum().backward()
        assert models[0][0].grad.data_ptr() == models[0][1].grad.data_ptr()
        truth = [(models[0][0].grad + 1) / 2, models[0][1].grad / 2]
        wrap(models, ["cpu", "cpu"], group=group).all_reduce_gradients()
        return [*grads(models[0]), *truth]

    first, second, *truth = together(1, act)[0]
    assert same([first, second], truth)


def test_a_gradient_that_nobody_has_stays_none(together: Together) -> None:
    def act(group: Group) -> list[bool]:
        model = nn.ModuleList(nn.Linear(5, 2) for _ in range(3))
        replicas = wrap([model], ["cpu"], group=group)
        model[1 if group.rank else 0](torch.ones(1, 5)).sum().backward()
        replicas.all_reduce_gradients()
        found = [part.bias.grad for part in model if isinstance(part.bias, nn.Parameter)]
        assert all(torch.equal(bias, torch.full((2,), 0.5)) for bias in found if bias is not None)
        return [bias is None for bias in found]

    assert together(2, act) == [[False, False, True]] * 2


def test_a_game_of_two_models(together: Together) -> None:
    """A generator and a critic, each with a wrapper of its own; ranks end with the same bits."""

    def act(group: Group) -> list[Tensor]:
        maker, critic = net(seed=group.rank), nn.Linear(3, 1)
        wrappers = wrap([maker], group=group), wrap([critic], group=group)
        for wrapper in wrappers:
            wrapper.sync_params()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (maker, critic)]
        for step in range(3):
            for player, sign in ((1, 1.0), (0, -1.0)):
                maker.zero_grad()
                critic.zero_grad()
                (sign * critic(maker(batch(group.rank, step))).tanh().mean()).backward()
                wrappers[player].all_reduce_gradients()
                optimizers[player].step()
        return values(maker) + values(critic)

    assert same(*together(2, act))


def test_wrong_use_says_what_to_do(together: Together) -> None:
    def act(group: Group) -> None:
        model = net()
        replicas = wrap([model], ["cpu"], group=group)
        for wrong, said in [
            (lambda: wrap(model), r"wrap takes a list of models"),
            (lambda: wrap([model], ["cpu"], group=group), r"parameter 0.weight is wrapped already"),
            (lambda: wrap([net(), net()], ["cpu"], group=group), "one model for each device is needed, not 2 for 1"),
            (lambda: wrap([], [], group=group), "one model for each device"),
            (lambda: wrap([model, model], group=group), "a model is in the list twice"),
            (lambda: wrap([net()], ["meta"], group=group), "model 0 is on cpu, not on meta: move it there first"),
            (
                lambda: wrap([net(), net(norm=True)], group=group),
                "these are not replicas of one model: parameter 1.weight",
            ),
            (lambda: wrap([nn.Tanh()], group=group), "without parameters"),
            (
                lambda: replicas.weighted_all_reduce_gradients([1, 2]),
                "one count for each of 1 replicas is needed, not 2",
            ),
            (lambda: replicas.weighted_all_reduce_gradients([0]), "not all zero"),
            (lambda: replicas.weighted_all_reduce_gradients([float("nan")]), "must be finite"),
        ]:
            with pytest.raises(ValueError, match=said):
                wrong()  # type: ignore[no-untyped-call]
        replicas.close()
        wrap([model], group=group)

    together(1, act)


def test_ranks_that_disagree_are_told() -> None:
    def counts(group: Group) -> None:
        wrap([net()], group=group).weighted_all_reduce_gradients([1, 2 + group.rank])

    def turned(group: Group) -> None:
        """Each its own first: they add up alike."""
        wrap([net()], group=group).weighted_all_reduce_gradients([3, 1] if group.rank else [1, 3])

    def shapes(group: Group) -> None:
        wrap([nn.Linear(5, 2 + group.rank)], group=group)

    for act, said in (
        (counts, r"ranks gave different counts, \[1.0, [23].0\] on rank [01]"),
        (turned, r"ranks gave different counts, \[[13].0, [13].0\] on rank [01]: give all of them the same list"),
        (shapes, r"ranks do not agree: parameter weight is float32 \[3, 5\] on rank 1"),
    ):
        for result in run_together(2, act):
            with pytest.raises(ValueError, match=said):
                raise result


def test_counts_do_not_overflow_half_precision() -> None:
    models = [nn.Linear(1, 1, bias=False).half(), nn.Embedding(1, 1, sparse=True).half()]
    for number, model in enumerate(models):
        replicas = wrap([model], ["cpu"])
        out = model(torch.zeros(1, dtype=torch.int64)) if number else model(torch.ones(1, 1).half())
        (out * 512).sum().backward()
        replicas.weighted_all_reduce_gradients([256.0])
        assert model.weight.grad is not None
        assert model.weight.grad.flatten().tolist() == [512.0]
        replicas.close()
    current().close()  # made by the first: the process has one, for all that follows
