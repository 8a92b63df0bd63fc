"""Mixes and bursts of applications, managed and unmanaged, in the manner of the BarbequeRTRM papers."""
