"""Tests of what checks read in a run's records."""
