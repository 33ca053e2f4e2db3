"""Tests of `bench.timeline`."""
