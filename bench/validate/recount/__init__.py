"""Recomputes the figures of a run from its records, by the definitions in the schema.

It shares no code with what computed them (`bench.results.analysis`, `ddp.core.figures.summary`,
`ddp.core.rounds.round_actions`), so an error there does not repeat here. It handles only runs that lost nobody. It judges
nothing: it says what each figure must be, and how exactly that is known.
"""
