"""`Loading`: how a rank reads its data. Settings alone; `ddp.data` implements them."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("auto", "resident", "streaming")
MOST_AHEAD = 1000


@dataclass(frozen=True)
class Loading:
    """How a rank reads its data. Raises ValueError for invalid settings."""

    kind: str = "auto"
    """`resident`: all data is on the rank's device, where batches are gathered by index; `streaming`: a thread gathers
    batches ahead; `auto`: resident if it fits, as each rank decides. A Dataset read sample by sample is streamed."""
    prefetch: int | None = None
    """Batches that streaming gathers ahead; null: 4 in the first epoch, then as many as fit into memory (2 to 32)."""
    vram_max_usage: float = 0.75
    """Share of a GPU's free memory that data may take, in (0, 1]."""
    memory_max_usage: float = 0.75
    """Share of the host's free memory that data may take, in (0, 1], for ranks that train on the CPU."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"loader kind={self.kind!r} is not one of {', '.join(KINDS)}")
        ahead = self.prefetch
        if ahead is not None and (
            isinstance(ahead, bool) or not isinstance(ahead, int) or not 1 <= ahead <= MOST_AHEAD
        ):
            raise ValueError(
                f"loader prefetch={ahead!r} must be a whole number from 1 to {MOST_AHEAD}; null: as there is room"
            )
        for name in ("vram_max_usage", "memory_max_usage"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
                raise ValueError(f"loader {name}={share!r} must be above 0 and at most 1")
