"""Tests of `bench.audit`."""
