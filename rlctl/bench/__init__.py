"""Managers side by side: on the simulator, on live hosts, on a cluster; and their constants searched alike."""
