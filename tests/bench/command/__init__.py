"""Tests of `bench.command`: what verbs accept, print and return."""
