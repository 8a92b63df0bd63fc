"""Scenarios: YAML files that say which services run, how the load goes, and what the managers are told."""
