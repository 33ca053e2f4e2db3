"""Transports: how ranks carry out collectives. One file each, with a class `Transport`; `auto` takes the first that
applies."""

TRANSPORTS: dict[str, str] = {
    "nccl": "ddp.comm.transports.nccl",
    "memory": "ddp.comm.transports.memory",
    "gloo": "ddp.comm.transports.gloo",
}
"""Name -> module, the fastest first. Modules are imported on first use, because they need torch."""
