"""Managers side by side: on the simulator, on live hosts, on a cluster; and their constants searched alike.

Simulated, `sim` compares them: `simulation` runs one manager, `suite` is what came of it. Live, `hosts` compares them,
here or on a cluster: `testbed` runs them on one host, and `score` makes the metrics of `rlctl.envs.score` of it.
"""
