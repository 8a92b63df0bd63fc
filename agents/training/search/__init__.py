"""Hyperparameter search on Ray Tune."""
