"""Reins of BE beside its CPUs: the disks it writes to and the link it sends on, each held by one number."""
