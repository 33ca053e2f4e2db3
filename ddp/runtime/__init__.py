"""The only place that touches processes, clocks, channels and collectives. It obeys `ddp.core`.

Importing this package imports no torch: the harness reads records with its codec.
"""
