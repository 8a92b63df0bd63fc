"""The fault matrix: a real `rlctl serve` on control groups of its own, one fault each, watched from outside."""
