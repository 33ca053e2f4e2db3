"""Trains many small replicas in one process, in virtual time: the engine `virtual`.

Owns how the simulation's ranks compute. Decides nothing: policies, coordinator and averages are those of real runs.
"""
