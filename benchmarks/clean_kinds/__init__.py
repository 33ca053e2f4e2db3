"""Runs without a defect, of settings drawn at random: no check may alarm.

`python -m benchmarks.clean_kinds` trains and judges them. `commands` draws settings of `bench`; `script` is a user's own.
"""
