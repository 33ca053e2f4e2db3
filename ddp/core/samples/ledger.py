"""The ledger of an epoch: which samples are free, granted, or in the model. Enforces law 1 (each exactly once per epoch).

Knows positions only; it does not know who trains them, when or how fast."""

from __future__ import annotations

from itertools import pairwise

from ddp.core.samples.spans import Span, Spans, measure, union
from ddp.core.values.frozen import replace, value


@value(frozen=True)
class Ledger:
    """The samples of one epoch. Every position goes free -> granted -> merged; back to free if its rank is lost."""

    epoch: int
    samples: int
    pools: tuple[Span, ...] = ()
    """Spans that were never granted: one pool that all ranks share, or one per rank. A pool may be empty (start ==
    stop)."""
    returned: Spans = ()
    """Spans that were granted to a lost rank: free again, for any rank."""
    merged: Spans = ()
    """Spans that are trained and in the model that all ranks share."""

    @staticmethod
    def shared(epoch: int, samples: int) -> Ledger:
        """Return the ledger of an epoch whose positions are granted in order to any rank."""
        return Ledger(epoch, samples, ((0, samples),))

    @staticmethod
    def sliced(epoch: int, samples: int, batch: int, steps: tuple[int, ...]) -> Ledger:
        """Return the ledger of an epoch in which every rank owns a slice of `steps[rank]` steps; the slices cover the
        epoch."""
        cuts = [0]
        for n in steps:
            cuts.append(min(samples, cuts[-1] + n * batch))
        assert cuts[-1] == samples, f"{steps} steps of {batch} samples do not cover {samples}"
        return Ledger(epoch, samples, tuple(pairwise(cuts)))

    @property
    def free(self) -> int:
        """Number of samples that can be granted."""
        if len(self.pools) == 1 and not self.returned:  # the usual case
            return self.pools[0][1] - self.pools[0][0]
        return sum([stop - start for start, stop in self.pools]) + measure(self.returned)

    def steps(self, batch: int) -> int:
        """Return how many batches can be granted; the last one of a span may be smaller."""
        return sum(-(-(stop - start) // batch) for start, stop in (*self.pools, *self.returned))

    @property
    def complete(self) -> bool:
        """Whether every sample is in the model."""
        return self.merged == ((0, self.samples),)

    def within_reach(self, rank: int, owners: tuple[int, ...]) -> int:
        """Return how many samples can be granted to `rank`, if it may also take those of `owners`."""
        if len(self.pools) == 1 or len(owners) == len(self.pools):
            return self.free
        pools = {rank, *owners} & set(range(len(self.pools)))
        return measure(self.returned) + sum(self.pools[pool][1] - self.pools[pool][0] for pool in pools)

    def take(self, rank: int, steps: int, batch: int, owners: tuple[int, ...]) -> tuple[Ledger, Span]:
        """Grant up to `steps` consecutive batches: of returned spans first; else of the rank's own pool; else from the end
        of the largest pool of `owners`, so that its owner continues undisturbed."""
        if self.returned:
            (start, stop), *rest = self.returned
            cut = min(stop, start + steps * batch)
            left = ((cut, stop), *rest) if cut < stop else tuple(rest)
            return replace(self, returned=left), (start, cut)
        own = 0 if len(self.pools) == 1 else rank
        start, stop = self.pools[own] if own < len(self.pools) else (0, 0)
        if start < stop:
            cut = min(stop, start + steps * batch)
            return self._with_pool(own, (cut, stop)), (start, cut)
        assert self.within_reach(rank, owners), f"epoch {self.epoch} has nothing left to grant to rank {rank}"
        pool = max(owners, key=lambda r: self.pools[r][1] - self.pools[r][0])
        start, stop = self.pools[pool]
        cut = start + max(-(-(stop - start) // batch) - steps, 0) * batch
        return self._with_pool(pool, (start, cut)), (cut, stop)

    def _with_pool(self, index: int, span: Span) -> Ledger:
        pools = (*self.pools[:index], span, *self.pools[index + 1 :]) if len(self.pools) > 1 else (span,)
        return replace(self, pools=pools)

    def give_back(self, spans: Spans) -> Ledger:
        """Free spans that a lost rank had not brought into the model."""
        return replace(self, returned=union(self.returned, spans)) if spans else self

    def reopen(self) -> Ledger:
        """Return the ledger of a run that resumes from this model: all other samples are free."""
        edges = (0, *(edge for span in self.merged for edge in span), self.samples)
        gaps = tuple((start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop)
        return replace(self, pools=((0, 0),) * len(self.pools), returned=gaps)

    def among(self, ranks: int) -> Ledger:
        """Return a reopened ledger for `ranks` ranks, with an empty pool for each, as one may get its own slice now."""
        return replace(self, pools=((0, 0),) * ranks)

    def merge(self, spans: Spans) -> Ledger:
        """Mark trained spans as in the model. Raises AssertionError if a position is there already."""
        return replace(self, merged=union(self.merged, spans)) if spans else self


def in_model(begun: int, ledgers: tuple[Ledger, ...], samples: int) -> int:
    """Return the number of samples in the model, after `begun` epochs of `samples`, of which `ledgers` are incomplete."""
    return (begun - len(ledgers)) * samples + sum(measure(ledger.merged) for ledger in ledgers)
