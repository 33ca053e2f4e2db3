"""Seeded bugs: real defects put into the engine, each of which a named check must catch. `python -m benchmarks.bugs`.

`registry` says what each breaks, where it shows and what must catch it; `patches` are the defects; `hooks` puts one into a
module as it is imported, in every process of a run (`hook/sitecustomize.py`), so the engine has no hook for them.
"""
