"""A reinforcement-learning control service for one Linux host."""

__version__ = "0.1.0"
