"""Tests of `bench.config`: Hydra, settings, plans."""
