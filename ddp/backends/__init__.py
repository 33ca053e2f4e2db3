"""How replicas are brought together. One file each."""

BACKENDS: dict[str, str] = {
    "nccl": "ddp.backends.allreduce",
    "cpu": "ddp.backends.snapshot",
}
"""Name -> module. Modules are imported on use: they need torch."""
