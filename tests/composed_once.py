"""Imported where commands are forked from: Hydra has found its plug-ins, and its parsers have their tables."""

from __future__ import annotations

from bench.config.compose import composing

with composing() as compose:
    compose(["model=mlp", "mode=nccl_sync", "data.name=digits", "cluster.speeds=[1.0,0.5]"])
