"""Tests of `bench.runner`: scripts, reruns, digests, hosts."""
