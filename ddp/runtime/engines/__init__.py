"""What runs the loop. One file each, with `run(job, emit) -> None`; `emit` receives every record as it happens."""

ENGINES: dict[str, str] = {
    "solo": "ddp.runtime.engines.solo",
    "elche": "ddp.runtime.engines.elche",
}
"""Name -> module. Modules are imported on use: they need torch."""
