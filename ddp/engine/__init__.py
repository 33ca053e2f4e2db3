"""What runs the loop. One module each, with `run(job, emit) -> None`; `emit` receives every record as it happens."""

from __future__ import annotations

from dataclasses import dataclass

ENGINES: dict[str, str] = {
    "solo": "ddp.engine.solo",
    "elche": "ddp.engine.elche",
    "graph": "ddp.graph.engine",
    "zero1": "ddp.backends.zero1",
    "zero2": "ddp.backends.zero2",
    "zero3": "ddp.backends.zero3",
    "torch_ddp": "ddp.backends.torch_ddp",
    "torch_fsdp": "ddp.backends.torch_fsdp",
    "torch_zero1": "ddp.backends.torch_zero1",
    "torch_local_sgd": "ddp.backends.torch_local_sgd",
}
"""Name -> module. Modules are imported on use: they need torch."""


@dataclass(frozen=True)
class EngineFacts:
    """What must be known of an engine before it runs."""

    made_of: tuple[str, ...] = ()
    """Which of `policy` and `backend` make a mode of it; none: the engine is a mode by itself."""
    policies: tuple[str, ...] = ()
    """Those that it can, where it has one; empty: all."""
    one_rank: bool = False
    """It trains on one rank only."""
    one_process: bool = False
    """Its ranks have no processes of their own: none can be lost."""
    peer: bool = False
    """It is PyTorch's own: what it exchanges goes through PyTorch's process groups and through nothing else."""
    checkpoints: bool = True
    """It makes some, and can be gone on with; not where the state is whole on no rank."""

    def fits(self, world_size: int) -> bool:
        """Whether it can have so many ranks."""
        return world_size == 1 or not self.one_rank


FACTS: dict[str, EngineFacts] = {
    "solo": EngineFacts(one_rank=True, one_process=True),
    "elche": EngineFacts(made_of=("policy", "backend")),
    "graph": EngineFacts(made_of=("policy",), policies=("sync", "cadence"), one_process=True),
    "torch_ddp": EngineFacts(peer=True),
    "torch_fsdp": EngineFacts(peer=True, checkpoints=False),
    "torch_zero1": EngineFacts(peer=True, checkpoints=False),
    "torch_local_sgd": EngineFacts(peer=True, checkpoints=False),
}
"""Of the engines that differ from the default."""


def facts(engine: str) -> EngineFacts:
    """Of the engine `engine`."""
    return FACTS.get(engine, EngineFacts())
