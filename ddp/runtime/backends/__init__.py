"""How replicas are brought together. One file each."""

BACKENDS: dict[str, str] = {
    "nccl": "ddp.runtime.backends.nccl",
    "cpu": "ddp.runtime.backends.cpu",
}
"""Name -> module. Modules are imported on use: they need torch."""
