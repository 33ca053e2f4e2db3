"""Tests of `bench.base`: exit codes, number formats, style, this machine."""
