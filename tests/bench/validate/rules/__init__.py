"""Tests of what policies, guards and ranks must have done."""
