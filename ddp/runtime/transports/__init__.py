"""How ranks meet in a collective. One file each, with a class `Transport`; `auto` takes the first that applies."""

TRANSPORTS: dict[str, str] = {
    "nccl": "ddp.runtime.transports.nccl",
    "memory": "ddp.runtime.transports.memory",
    "gloo": "ddp.runtime.transports.gloo",
}
"""Name -> module, the fastest first. Modules are imported on use: they need torch."""
