"""A simulated fleet of hosts, and new bundles rolled out over it."""
