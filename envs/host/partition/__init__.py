"""Partitions as control groups: the host's, the managed device's, and one for each of its clusters."""
