"""What samples hold, as numbers: whatever differs shows, and what ranks trained adds up to the data set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ddp.core.messages.event_parts import SetContent, Trained
from ddp.core.samples.spans import Batch
from ddp.core.settings.loader import Loading
from ddp.data import Draws, TensorSource, contents, crop_and_flip, order
from ddp.data.augment import Augment
from ddp.data.batch_loader import BatchLoader, feed
from ddp.data.contents import SampleHashes, compared, hashes, sample_hashes
from ddp.data.data_record import DataRecord
from ddp.data.epoch_order import EpochOrder
from ddp.tally import MODULUS, order_tally

SIZE, CPU = 50, torch.device("cpu")


def images(size: int = SIZE, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 1, 4, 4, generator=generator), torch.arange(size) % 10


def known(*tensors: Tensor) -> SampleHashes:
    found = sample_hashes(TensorSource(*tensors))
    assert isinstance(found, SampleHashes)
    return found


def recorded(kind: str, augment: Augment | None = None, *tensors: Tensor) -> tuple[BatchLoader, DataRecord]:
    visits = EpochOrder(3, SIZE)
    made, _ = feed(TensorSource(*(tensors or images())), visits, CPU, Loading(kind=kind), augment)
    test, _ = feed(TensorSource(*images(20, seed=2)), EpochOrder(0, 20, shuffle=False), CPU, Loading())
    return made, DataRecord(made.gather, test.gather, visits)


def taken(record: DataRecord) -> Trained:
    (sums,) = record.take()
    return Trained(0.0, 0, *sums)


def trained(loader: BatchLoader, record: DataRecord, epoch: int, least: int = 8) -> Trained:
    batches = [Batch(epoch, start, min(start + least, SIZE), least) for start in range(0, SIZE, least)]
    loader.expect(batches)
    for batch in batches:
        record.add(batch, loader.get(batch))
    return taken(record)


def test_losses_are_summed_over_samples_by_epoch() -> None:
    loader, record = recorded("resident")
    batches = [Batch(0, 0, 8, 8), Batch(0, 8, 10, 2), Batch(1, 0, 8, 8)]
    loader.expect(batches)
    for number, batch in enumerate(batches):
        record.add(batch, loader.get(batch))
        record.add_loss(batch.epoch, batch.samples, torch.tensor(0.5 + number, requires_grad=True))
    record.add_loss(1, 0, None)
    assert [sums[-1] for sums in record.take()] == [0.5 * 8 + 1.5 * 2, 2.5 * 8]
    record.add(batches[0], loader.get(batches[0]))
    record.add_loss(0, 8, torch.tensor(torch.inf))
    assert [sums[-1] for sums in record.take()] == [None]


def test_samples_beyond_their_positions_are_recorded() -> None:
    loader, record = recorded("resident")
    batch = Batch(0, 0, 4, 4)
    loader.expect([batch])
    given = loader.get(batch)
    record.add(batch, tuple(torch.cat([tensor, tensor[-1:]]) for tensor in given))
    found = taken(record)
    assert found.content != found.wanted
    assert found.content is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.bool, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("columns", [1, 3, 8, 9000])
def test_a_hash_is_of_the_sample_alone_and_of_all_of_it(dtype: torch.dtype, columns: int) -> None:
    torch.manual_seed(0)
    values, other = torch.randint(0, 2, (7, columns)).to(dtype), torch.arange(7)
    together = hashes([values, other])
    assert together.unique().numel() == 7
    assert torch.equal(together, torch.cat([hashes([values[k : k + 1], other[k : k + 1]]) for k in range(7)]))
    assert torch.equal(together[::2], hashes([values[::2], other[::2]]))
    values[4, 0] = ~values[4, 0] if dtype == torch.bool else values[4, 0] + 1
    assert (hashes([values, other]) != together).tolist() == [k == 4 for k in range(7)]


def test_members_that_change_places_show() -> None:
    one, two = torch.tensor([1, 2]), torch.tensor([2, 1])
    assert (hashes([one, two]) != hashes([two, one])).all()


@pytest.mark.parametrize("kind", ["resident", "streaming"])
@pytest.mark.parametrize("augment", [None, crop_and_flip(1)])
def test_an_epoch_is_what_the_data_set_holds_in_the_orders_of_the_seed(kind: str, augment: Augment | None) -> None:
    loader, record = recorded(kind, augment)
    content = record.content.training
    assert (content.samples, content.looked_at, content.repeated) == (SIZE, SIZE, 0)
    assert (content.labels, record.content.shuffled) == ((5,) * 10, True)
    for epoch in range(3):
        found = trained(loader, record, epoch)
        assert found.content == found.wanted == content.content
        assert (found.order, found.labels) == (order_tally(np.arange(SIZE), order(3, epoch, SIZE).numpy()), (5,) * 10)
    loader.close()


@given(st.permutations(range(SIZE)), st.integers(1, 5))
def test_parts_of_an_epoch_add_up(places: list[int], parts: int) -> None:
    every = known(*images())
    total = sum(int(every.of(np.array(places[k::parts])).sum()) for k in range(parts)) % MODULUS
    assert total == every.content().content
    sums = [order_tally(np.arange(SIZE)[k::parts], np.array(places)[k::parts]) for k in range(parts)]
    assert sum(sums) % MODULUS == order_tally(np.arange(SIZE), np.array(places))
    if list(places) != list(range(SIZE)):
        assert order_tally(np.arange(SIZE), np.array(places)) != order_tally(np.arange(SIZE), np.arange(SIZE))


@pytest.mark.parametrize("defect", ["labels", "images", "twice"])
def test_what_differs_from_the_data_set_shows(defect: str) -> None:
    loader, record = recorded("resident")
    batch = Batch(0, 8, 16, 8)
    shown, labels = (tensor.clone() for tensor in loader.get(batch))
    if defect == "labels":
        labels[3] = (labels[3] + 1) % 10
    elif defect == "images":
        shown[3, 0, 2, 2] += 1e-6
    else:
        shown[3], labels[3] = shown[2], labels[2]
    record.add(batch, (shown, labels))
    found = taken(record)
    assert found.content != found.wanted


def test_a_loss_that_writes_into_its_batch_is_no_other_sample() -> None:
    loader, record = recorded("resident")
    batch = Batch(0, 0, 8, 8)
    given_ = loader.get(batch)
    record.add(batch, given_)
    given_[0].mul_(2.0)
    found = taken(record)
    assert (found.content, found.wanted, found.labels) == (None, None, ())
    found = trained(loader, record, 0)
    assert found.content == found.wanted == record.content.training.content


def test_large_sets_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "WHOLE", 100)
    loader, record = recorded("resident")
    assert 0 < record.content.training.looked_at < SIZE
    assert record.content.training.labels == ()
    found = trained(loader, record, 0)
    assert found.content == found.wanted == record.content.training.content


def test_test_samples_among_the_training_samples_are_named() -> None:
    (training, labels), (test, others) = images(), images(20, seed=2)
    training[7], training[30], training[8] = test[3], test[11], training[9]
    found = compared(known(training, labels), known(test, others), True)
    assert (found.shared, found.pairs, found.training.repeated) == (2, ((3, 7), (11, 30)), 1)


def test_sets_that_may_give_others_each_time_are_not_read() -> None:
    class Noisy(TensorSource):
        def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
            raise AssertionError("it was read")

    class Random(TensorSource):
        repeatable = True

        def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
            return (torch.rand(len(indices)),)

    for source in (Noisy(*images()), Random(*images())):
        assert sample_hashes(source) == SetContent(SIZE)


def test_what_is_evaluated_adds_up_to_the_test_set() -> None:
    _, record = recorded("resident")
    assert record.shown() is None
    shown, labels = images(20, seed=2)
    for part in (slice(0, 7), slice(7, 20)):
        record.show((shown[part], labels[part]))
    assert record.shown() == record.content.test.content
    record.show((shown, labels.flip(0)))
    assert record.shown() != record.content.test.content


def test_augmented_batches_are_given_back_as_the_data_set_had_them() -> None:
    loader, _ = recorded("resident", lambda batch, draws: (batch[0] + draws.uniform(1, 4, 4), batch[1]))
    batch = Batch(0, 0, 8, 8)
    finished = loader.get(batch)
    given_, intact = loader.gather.given(batch, finished)
    assert intact
    assert torch.equal(given_[0], images()[0][order(3, 0, SIZE)[:8]])
    assert not torch.equal(finished[0], given_[0])


@pytest.mark.parametrize("kind", ["resident", "streaming"])
def test_an_augmentation_in_place_is_no_other_sample(kind: str) -> None:
    """Its samples were hashed after it, and the training was said to be of other data."""

    def brighter(batch: tuple[Tensor, Tensor], draws: Draws) -> tuple[Tensor, Tensor]:
        batch[0].add_(draws.uniform(1, 4, 4))
        return batch

    loader, record = recorded(kind, brighter)
    for least in (7, 8):
        found = trained(loader, record, 0, least)
        assert (found.content, found.wanted) == (None, None)
    loader.close()
