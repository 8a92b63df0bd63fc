"""Live benchmarks on the hosts of a Ray cluster that offer a testbed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rlctl.agents.training.cluster.connection import connected, require_ray
from rlctl.bench.hosts import HostsOutcome, measure_on_hosts
from rlctl.bench.live import Plan

__all__ = ["live_on_ray"]

Live = Callable[[Plan, Callable[[str, int], None]], HostsOutcome]
"""Measures a plan; the second is called after each run with the manager's name and the repeat."""


@contextlib.contextmanager
def live_on_ray(address: str, say: Callable[[str], None], *, logs: bool = False) -> Iterator[Live]:
    """While connected to a cluster, what measures live plans on its hosts.

    Args:
        address: As `rlctl.agents.training.cluster.connection.connected` takes it; `local` is this host alone.
        say: Takes a line on what became of hosts.
        logs: Show what Ray logs.

    Raises:
        ConfigError: Ray is not installed, the address is none, or a node has another rlctl.
        HostError: Nobody answers there.
    """
    require_ray()
    from rlctl.agents.training.cluster.blocks import LIVE_TESTBED

    with connected(address, resources=LIVE_TESTBED, logs=logs) as cluster:
        hosts = sum(node.holds(LIVE_TESTBED) for node in cluster.nodes)
        say(
            f"Ray at {address}: nodes: {len(cluster.nodes)}, live testbeds: {hosts}; each starts, and searches its "
            "maximum load, for a minute or two"
        )

        def measure(plan: Plan, done: Callable[[str, int], None]) -> HostsOutcome:
            if hosts > 1 and plan.repeats < 2 * hosts:
                say(f"{plan.repeats} repeats on {hosts} hosts leave no interval or a wide one: --repeats {2 * hosts}")
            return measure_on_hosts(plan, cluster, done, say)

        yield measure
