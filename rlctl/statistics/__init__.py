"""Means with intervals, over windows, repeats and seeds."""
