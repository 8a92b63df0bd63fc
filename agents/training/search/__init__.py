"""A search over hyperparameters and shield margins, as trials on Ray Tune."""
