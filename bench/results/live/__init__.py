"""The one fold from records to figures, for the terminal, the live page, the loggers and `metrics.json`.

`run` has the figures of a run so far (`ddp.core.figures.summary` has those of an epoch), `history` what is drawn over time,
`series` and `curves` its time bins, and `tail` follows a folder while it is written. All but `tail` are pure. Memory is
bounded. Knows nothing of pages, terminals and loggers.
"""
