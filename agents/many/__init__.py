"""Policies on many hosts at once: one array operation instead of a loop over hosts."""
