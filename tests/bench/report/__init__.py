"""Tests of `bench.report`: pages, their pictures and words."""
