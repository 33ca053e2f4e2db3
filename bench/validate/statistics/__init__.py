"""Own the tests behind verdicts, their levels, and the figures that they compare. Must not know cells, baselines or
messages."""
