"""What a configuration may say of ranks that a launcher or a scheduler starts, and not the command itself. Pure."""

from __future__ import annotations

from dataclasses import replace

from bench.config.config import Config
from ddp.engine.modes import engine_of


def launched(config: Config, ranks: int, hosts: int, starts: str, remedy: str) -> Config:
    """Return the configuration with the number of ranks that are started, on `hosts`. `starts`: what starts them, in words;
    `remedy`: how to do without. Raise ValueError if the configuration contradicts that."""
    cluster = config.cluster
    if engine_of(config.engine.name).in_place:
        raise ValueError(f"mode={config.engine.name} trains in one process: {remedy}")
    if config.world_size not in (None, ranks):
        raise ValueError(f"world_size={config.world_size}, but {starts} {ranks} processes: leave it out")
    if hosts > 1 and cluster.transport == "memory":
        raise ValueError(f"cluster.transport=memory needs all ranks on one host, there are {hosts}: leave it out")
    if str(cluster.restart) not in ("never", "0") or cluster.absent or cluster.spares:
        own = "cluster.restart, cluster.absent and cluster.spares are for ranks that the command starts itself"
        raise ValueError(f"{own}, and {starts} these: leave them out")
    return replace(config, world_size=ranks)
