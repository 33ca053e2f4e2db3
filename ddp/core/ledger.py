"""The ledger of an epoch: which samples are granted, given back, and in the model. Law 1 lives here.

Knows positions only; who trains them, when and how fast is not its business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp.core.spans import Span, Spans, measure, union


@dataclass(frozen=True, slots=True)
class Ledger:
    """The samples of one epoch. Every position goes free -> granted -> merged, and back to free if its rank is lost."""

    epoch: int
    samples: int
    cursor: int = 0
    """First position that was never granted."""
    returned: Spans = ()
    """Granted to a rank that is lost, free again."""
    merged: Spans = ()
    """Trained and in the model that all ranks share."""

    @property
    def free(self) -> int:
        """Samples that can be granted."""
        return self.samples - self.cursor + measure(self.returned)

    @property
    def complete(self) -> bool:
        """Every sample is in the model."""
        return self.merged == ((0, self.samples),)

    def take(self, samples: int) -> tuple[Ledger, Span]:
        """Grant up to `samples` consecutive positions, those given back first."""
        assert self.free, f"epoch {self.epoch} has nothing left to grant"
        if self.returned:
            (start, stop), *rest = self.returned
            cut = min(stop, start + samples)
            left = ((cut, stop), *rest) if cut < stop else tuple(rest)
            return replace(self, returned=left), (start, cut)
        stop = min(self.samples, self.cursor + samples)
        return replace(self, cursor=stop), (self.cursor, stop)

    def give_back(self, spans: Spans) -> Ledger:
        """Free what a lost rank had not brought into the model."""
        return replace(self, returned=union(self.returned, spans)) if spans else self

    def reopen(self) -> Ledger:
        """The ledger of whoever goes on from the model as it is: what is not in it is free."""
        edges = (0, *(edge for span in self.merged for edge in span))
        gaps = tuple((start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=False) if start < stop)
        return replace(self, cursor=edges[-1], returned=gaps)

    def merge(self, spans: Spans) -> Ledger:
        """Bring trained samples into the model. AssertionError if one is there already."""
        return replace(self, merged=union(self.merged, spans)) if spans else self
