"""Tests of whether the files of a run may be trusted."""
