"""Runs the core in virtual time: an event queue, a cost model, a fault script. No process, no clock, no tensor."""

from ddp.sim.simulator import Costs, Simulation, simulate

__all__ = ["Costs", "Simulation", "simulate"]
