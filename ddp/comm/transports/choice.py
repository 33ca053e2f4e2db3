"""Decides which transport carries the collectives of a run: the one that the user names, or the first that applies."""

from __future__ import annotations

import importlib
from typing import Protocol

from ddp.comm.transports import TRANSPORTS
from ddp.comm.transports.base import Transport, TransportConfig


class TransportType(Protocol):
    """The class of a transport that `choose` can make."""

    def applies(self, config: TransportConfig) -> bool:
        """Return whether the transport works with this configuration."""
        ...

    def __call__(self, config: TransportConfig) -> Transport: ...


def choose(name: str, config: TransportConfig) -> Transport:
    """Return the transport `name`; `auto`: the first that applies. Raise ValueError if it does not work here."""
    for each in TRANSPORTS if name == "auto" else (name,):
        transport: TransportType = importlib.import_module(TRANSPORTS[each]).Transport
        if transport.applies(config):
            return transport(config)
    raise ValueError(f"cluster.transport={name} does not work here ({config.device}); use auto")
