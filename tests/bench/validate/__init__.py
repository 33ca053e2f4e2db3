"""Tests of `bench.validate`, in its rooms, and made-up runs for all of them."""
