"""Tests of the runtime: ranks, processes and what they exchange; here is what several rooms share."""
