"""Fine-tuning on a live host, within bounds."""
