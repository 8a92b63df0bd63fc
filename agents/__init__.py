"""Who decides: heuristic managers, learned policies, and their training."""
