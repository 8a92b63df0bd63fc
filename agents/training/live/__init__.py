"""Fine-tuning a policy on one live host, behind the shield and within bounds of exploration."""
