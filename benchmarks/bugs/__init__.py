"""Seeded bugs: real defects put into the engine, each of which a named check must catch. `python -m benchmarks.bugs`.

A file for each family has the defects, with what must catch them; `registry` has all; `hooks` puts one into a module as it
is imported, in every process of a run (`hook/sitecustomize.py`), so the engine has no hook for them. `unseen` has those
of somebody who had not read the checks.
"""
