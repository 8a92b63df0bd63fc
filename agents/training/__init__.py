"""Training and fitting; the only place that may import torch, Stable-Baselines3, Ray and scikit-learn."""
