"""Policies that watch while another acts, and what comes of it."""
