"""Managers side by side: on the simulator, on live hosts, on a cluster; and their constants searched alike.

Simulated, `sim_plan` compares them: `sim_run` runs one manager. Live, `live_repeats`
compares them, here or on a cluster: `testbed` runs them on one host. `score` makes
the metrics of `rlctl.envs.run_metrics` of both.
"""
