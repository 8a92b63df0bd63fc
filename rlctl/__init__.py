"""The service that gives a host's spare CPU to best-effort work while its latency-critical service keeps its target."""

__version__ = "0.1.0"
