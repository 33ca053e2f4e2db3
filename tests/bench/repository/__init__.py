"""Tests of what the repository promises: documents, wheel, golden digests, seeded bugs, committed figures."""
