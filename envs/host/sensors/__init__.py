"""Readers of the live host. Each takes its roots as parameters, so that a captured tree stands in for a host."""
