"""The simulated host: queueing theory, fitted to measurement, vectorised over any number of hosts."""
