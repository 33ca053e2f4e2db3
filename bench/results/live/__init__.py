"""Records in, figures out, once: the one fold behind terminal, live page, loggers and `metrics.json`.

`run` has the figures of a run so far (those of an epoch are `ddp.core.summary`'s), `history` what of it is drawn over time,
`series` and `curves` the stretches of that, `tail` follows a folder while it is written. Pure but for `tail`; bounded; knows
nothing of pages, terminals and loggers.
"""
