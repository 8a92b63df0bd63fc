"""Bounds for the simulator only: they look into the simulated host, so no manager can be them."""
