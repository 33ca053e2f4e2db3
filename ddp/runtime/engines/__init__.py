"""What runs the loop. One file each, with `run(job, emit) -> None`; `emit` receives every record as it happens."""

ENGINES: dict[str, str] = {
    "solo": "ddp.runtime.engines.solo",
    "elche": "ddp.runtime.engines.elche",
    "zero1": "ddp.runtime.engines.zero1",
    "zero2": "ddp.runtime.engines.zero2",
    "zero3": "ddp.runtime.engines.zero3",
}
"""Name -> module. Modules are imported on use: they need torch."""
