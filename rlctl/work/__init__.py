"""Long work: a pool of processes, and its progress on stderr."""
