"""What sections compute from cells: comparisons, intervals, times, causes of lost time. Pure; draws and says nothing."""
