"""Measurements in the manner of the papers: mixes, bursts, and wake-up latency."""
