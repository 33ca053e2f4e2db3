"""Computes what sections show of cells: comparisons, intervals, times, causes of lost time. Pure; draws and says nothing."""
