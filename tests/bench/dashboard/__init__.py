"""Tests of `bench.dashboard`."""
