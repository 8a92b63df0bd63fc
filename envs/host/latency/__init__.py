"""Where the LC's tail latency comes from: an endpoint, a file, a log, or the testbed's own load generator."""
