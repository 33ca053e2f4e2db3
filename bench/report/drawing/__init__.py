"""Lays out plots: labels and words without overlap, small plots on common scales, legends beside them."""
