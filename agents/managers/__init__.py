"""Heuristic managers: the published ones, and the plain references that every table holds."""
