"""Compute the figures of epochs from records, on a clock that stops during evaluation. Must not know files or pages."""
