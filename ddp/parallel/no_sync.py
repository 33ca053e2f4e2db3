"""Own which backward passes send: decided in the forward pass, as torch's DistributedDataParallel does. Pure."""

from __future__ import annotations


class NoSyncState:
    """One wrapper's `no_sync()` and forward passes, and what follows for its backward passes.

    A forward pass outside `no_sync()` has the next backward pass send, wherever that is. After one inside, backward passes
    stay on this rank until the next one outside. Where torch's ranks would come apart (further passes after the one that
    sent, passes of a graph that the wrapper has not seen), ours send too, outside `no_sync()`.
    """

    def __init__(self) -> None:
        self._wanted = True
        self._armed = self._sent = False
        """Whether a forward pass outside has been, and whether a pass has sent since."""
        self._local = False
        """Whether the latest forward pass was inside."""

    @property
    def wanted(self) -> bool:
        """Return False inside `no_sync()`."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: bool) -> None:
        self._wanted = wanted
        self._disarm()

    @property
    def now(self) -> bool:
        """Return whether a backward pass sends."""
        return self._armed or (self._wanted and not self._local)

    def forward(self) -> None:
        """Note a forward pass with gradients."""
        if self._wanted:
            self._armed, self._sent, self._local = True, False, False
        else:
            self._disarm()
            self._local = True

    def sent(self) -> None:
        """Note that a backward pass has sent. Reentrant ones are several of one: what follows at once goes the same way."""
        self._sent = True

    def _disarm(self) -> None:
        self._armed = self._armed and not self._sent
