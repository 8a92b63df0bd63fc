"""The tours that are Python: `scripts/tour NAME` runs them."""
