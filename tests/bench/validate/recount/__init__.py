"""Tests of figures that are recomputed from records."""
