"""Defines `RunSummary`: a short description of a run for a terminal or a notebook. Pure: knows neither threads nor
models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ddp.trainer.epochs import EpochMetrics

SLOW = 100
"""Samples per second below which a throughput is shown with decimals."""
SHOWN = 20
"""Number of epochs in a table: the last ones."""
STYLE = "text-align: right; padding: 0 0.6em"


@dataclass(frozen=True)
class RunSummary:
    """The state of a run at one moment."""

    mode: str
    metric: str
    """Name of the evaluated metric."""
    devices: tuple[str, ...]
    planned: int
    """Number of epochs that the run is to train."""
    state: str
    """`running`, `finished`, `aborted`, or the error that ended the run."""
    seconds: float
    """Seconds of training, without evaluation."""
    epochs: tuple[EpochMetrics, ...]
    """The last complete epochs."""
    notes: tuple[str, ...] = ()
    """Warnings: lost ranks, how the data was read."""
    folder: Path | None = None

    @property
    def headline(self) -> str:
        """Return mode, ranks, state and progress in one line."""
        ranks = "1 rank" if len(self.devices) == 1 else f"{len(self.devices)} ranks"
        where = ", ".join(dict.fromkeys(self.devices))
        done = self.epochs[-1].epoch + 1 if self.epochs else 0
        time = f", {self.seconds:.1f} s of training" if self.epochs else ""
        return f"{self.mode} on {ranks} ({where}): {self.state}, {done} of {self.planned} epochs{time}"

    @property
    def figures(self) -> str:
        """Return the metrics of the last complete epoch in one line; empty if there is none."""
        if not self.epochs:
            return ""
        return ", ".join(f"{name} {value}" for name, value in self._row(self.epochs[-1]).items())

    def lines(self) -> Iterator[str]:
        """Yield the whole summary line by line, for a terminal."""
        yield self.headline
        if self.figures:
            yield self.figures
        yield from self.notes
        if self.folder is not None:
            yield f"results {self.folder}"

    def html(self) -> str:
        """Return the summary as HTML, with a table of the last epochs."""
        rows = [self._row(epoch) for epoch in self.epochs[-SHOWN:]]
        names = list(dict.fromkeys(name for row in rows for name in row))
        parts = [f"<p>{escape(self.headline)}</p>"]
        if rows:
            head = "".join(f'<th style="{STYLE}">{escape(name)}</th>' for name in names)
            cells = (
                "".join(f'<td style="{STYLE}">{escape(row.get(name, "-"))}</td>' for name in names) for row in rows
            )
            body = "".join(f"<tr>{line}</tr>" for line in cells)
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts += [f"<p>{escape(note)}</p>" for note in self.notes]
        if self.folder is not None:
            parts.append(f"<p>results <code>{escape(str(self.folder))}</code></p>")
        return "".join(parts)

    def _row(self, epoch: EpochMetrics) -> dict[str, str]:
        """Return the available metrics of an epoch as text, by name."""
        known = {"loss": epoch.loss, self.metric: epoch.eval, "test loss": epoch.eval_loss, "lr": epoch.lr}
        speed = epoch.samples / epoch.seconds if epoch.seconds > 0 else 0.0
        rate = {"samples/s": f"{speed:,.0f}" if speed >= SLOW else f"{speed:.3g}"} if speed else {}
        figures = {name: f"{value:.4g}" for name, value in known.items() if value is not None}
        scalars = {name: "-" if value is None else f"{value:.4g}" for name, value in epoch.scalars.items()}
        return {"epoch": str(epoch.epoch), **figures, **rate, **scalars}
