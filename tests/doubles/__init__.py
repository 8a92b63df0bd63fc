"""Stand-ins for the kernel and for measured hosts, for tests and soak runs."""
