"""Studies run by scripts and by no command: tuning of managers, training of shipped bundles, ablation, exact bounds."""
