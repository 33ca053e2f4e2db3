"""Tests of the harness, a room for each of its rooms; here is what several of them share."""
