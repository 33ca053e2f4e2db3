"""Tests of the time that emulated devices, links and virtual steps must take."""
