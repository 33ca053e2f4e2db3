"""What each library that could be another one, or none, costs and gives: the figures of docs/explanation/libraries.md.

    python -m benchmarks.libraries [imports failing reading decoding augmenting averaging records tables]

Everything that is compared runs interleaved, on one thread, and counts this thread's own time on its core: what other
programs do is divided among both sides. Ratios are medians, with quartiles behind them.
"""
