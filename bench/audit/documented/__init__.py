"""What a run must have done by the documents: seeds, orders of samples, schedules. Written without the engine's code."""
