"""Scenarios as YAML: who runs on the host, how the load goes, and what the managers are told."""
