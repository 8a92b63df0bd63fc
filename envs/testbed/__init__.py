"""The testbed: real LC and BE workloads, the load generator, and traces of load."""
