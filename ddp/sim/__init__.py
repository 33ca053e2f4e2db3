"""The core in virtual time: a heap of happenings, a cost model, a fault script. No process, no clock, no tensor."""

from ddp.sim.simulator import Costs, Simulation, simulate

__all__ = ["Costs", "Simulation", "simulate"]
