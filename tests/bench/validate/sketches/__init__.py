"""Tests of states, copies and averages by their sketches."""
