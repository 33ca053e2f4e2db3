"""Counts a run's figures anew from its records, by the words of the schema.

Shares no code with what computed them (`bench.results.analysis`, `ddp.core.summary`, `ddp.core.round_actions`): an error in
one is none in the other. Knows runs that lost nobody, and judges nothing: it says what each figure must be, and how exactly
that is known.
"""
