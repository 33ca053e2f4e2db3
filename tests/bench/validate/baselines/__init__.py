"""Tests of how baselines are proposed, accepted, chosen and revised."""
