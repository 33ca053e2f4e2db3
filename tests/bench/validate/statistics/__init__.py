"""Tests of the tests behind verdicts, and of the figures that they compare."""
