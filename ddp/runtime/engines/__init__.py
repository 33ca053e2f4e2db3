"""What runs the loop. One file each, with `run(job, emit) -> None`; `emit` receives every record as it happens."""

ENGINES: dict[str, str] = {
    "solo": "ddp.runtime.engines.solo",
    "elche": "ddp.runtime.engines.elche",
    "torch_ddp": "ddp.runtime.engines.torch_ddp",
    "torch_fsdp": "ddp.runtime.engines.torch_fsdp",
    "torch_zero1": "ddp.runtime.engines.torch_zero1",
    "torch_local_sgd": "ddp.runtime.engines.torch_local_sgd",
}
"""Name -> module. Modules are imported on use: they need torch."""

PEERS = ("torch_ddp", "torch_fsdp", "torch_zero1", "torch_local_sgd")
"""PyTorch's own: what they exchange goes through its process groups and through nothing else."""

NO_CHECKPOINTS = frozenset({"torch_fsdp", "torch_zero1", "torch_local_sgd"})
"""Engines whose state is not whole on any rank; they make no checkpoints and cannot be gone on with."""
