"""Real training of many small replicas in one process, under the virtual clock: engine `virtual`.

Owns how the simulation's ranks really compute. Decides nothing: policies, coordinator and averages are those of real runs.
"""
