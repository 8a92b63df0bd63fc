"""The work of a benchmark on a Ray cluster.

Simulated runs are tasks: the numbers are those of one process, whoever does what. Live ones go to hosts that offer a
testbed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rlctl.agents.training.cluster.connection import connected, require_ray
from rlctl.bench.hosts import HostsOutcome, measure_on_hosts
from rlctl.bench.live import Plan
from rlctl.bench.sim import Runner
from rlctl.bench.sim_run import Task, TaskResult, run_task

__all__ = ["live_on_ray", "on_ray"]

Live = Callable[[Plan, Callable[[str, int], None]], HostsOutcome]
"""Measures a plan; the second is called after each run with the manager's name and the repeat."""


@contextlib.contextmanager
def on_ray(
    address: str, workers: int | None, say: Callable[[str], None], *, logs: bool = False
) -> Iterator[tuple[int, Runner]]:
    """While connected to a cluster, how many pieces of work it does at a time, and what runs them there.

    Args:
        address: As `rlctl.agents.training.cluster.connection.connected` takes it.
        workers: Of a cluster that is started here; None is one for each CPU.
        say: Takes a line for each task that was lost, and one at the end that counts them.
        logs: Show what Ray logs.

    Raises:
        ConfigError: Ray is not installed, the address is none, or a node has another rlctl.
        HostError: Nobody answers there.
    """
    lost: list[str] = []

    def told(line: str) -> None:
        lost.append(line)
        say(f"{line}; doing it again")

    with connected(address, cpus=workers, logs=logs) as cluster:
        from rlctl.agents.training.cluster.tasks import map_tasks  # imports Ray, which is known to be there only now

        def run(tasks: list[Task], _: int, done: Callable[[str], None]) -> Iterator[TaskResult]:
            with contextlib.closing(map_tasks(cluster, run_task, tasks, lost=told)) as results:
                for _, result in results:
                    yield result
                    done(result.task.manager)

        say(f"Ray at {address}: nodes: {len(cluster.nodes)}, CPUs: {cluster.cpus}")
        yield cluster.cpus, run
    if lost:
        say(f"tasks lost and done again: {len(lost)}; no number depends on it")


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
