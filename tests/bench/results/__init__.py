"""Tests of `bench.results`: run folders, records, analysis, cells."""
