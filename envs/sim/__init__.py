"""The simulated host: queueing theory, fitted to measurement, vectorised over any number of hosts.

`physics`: CPU shares from `sharing`, tail latency from `queueing`, constants from `profile`. `sensing`
makes readings of it, late or missing ones too; `plant` makes a Plant of one host, `vector_env` an environment of many.
"""
