"""Tests of `bench.loggers`."""
