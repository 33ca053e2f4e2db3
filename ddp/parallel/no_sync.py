"""Own which backward passes send gradients. The forward pass decides, as in torch's DistributedDataParallel. Pure."""

from __future__ import annotations


class NoSyncState:
    """The state of one wrapper's `no_sync()` and forward passes, which decides whether its backward passes send.

    After a forward pass outside `no_sync()`, the next backward pass sends, wherever it is. After a forward pass inside,
    backward passes do not send until there is a forward pass outside. In two cases in which torch's replicas diverge,
    backward passes outside `no_sync()` send here: further passes after the one that sent, and passes of a graph that the
    wrapper has not seen.
    """

    def __init__(self) -> None:
        self._wanted = True
        self._armed = self._sent = False
        """Whether there was a forward pass outside `no_sync()`, and whether a backward pass has sent since."""
        self._local = False
        """Whether the latest forward pass was inside `no_sync()`."""

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
        """Return whether a backward pass would send now."""
        return self._armed or (self._wanted and not self._local)

    def forward(self) -> None:
        """Note a forward pass with gradients enabled."""
        if self._wanted:
            self._armed, self._sent, self._local = True, False, False
        else:
            self._disarm()
            self._local = True

    def sent(self) -> None:
        """Note that a backward pass has sent. A reentrant backward pass consists of several, so a pass that follows at once
        sends too."""
        self._sent = True

    def _disarm(self) -> None:
        self._armed = self._armed and not self._sent
