"""One function over many items, as tasks on a Ray cluster: each result once, whatever is lost on the way."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray import exceptions

from rlctl.agents.served.network import first_line
from rlctl.agents.training.cluster.nodes import Cluster, Version, check_version, our_version, told_by
from rlctl.envs.errors import ConfigError, HostError, RlctlError

RETRIES = 3
"""How often a task that was lost is done again; one that takes its worker down each time must come to an end."""

LOOK_SECONDS = 2.0
ROOM_SECONDS = 60.0
"""For a node to come back when none is left that could do what is left."""

CANCEL_SECONDS = 10.0
"""For tasks to end that are no longer wanted: one on a live host puts back what it changed."""

LOST = (
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.LocalRayletDiedError,
    exceptions.ObjectLostError,  # it was done, and its result went with the node
)
"""What Ray raises when a worker or its node went away, and not the function failed."""

ALIVE_CHILDREN = {"RAY_kill_child_processes_on_worker_exit": "0"}
"""Environment of workers on a live host. Ray kills a worker's children otherwise: the keeper too, which is there to
clear up after it."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_tasks(
    cluster: Cluster,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    lost: Callable[[str], None] = lambda _: None,
) -> Generator[tuple[int, Result], None, None]:
    """Run a function on every item, each on a CPU.

    Left early, by Ctrl-C too, the tasks that wait are dropped and those that run get a KeyboardInterrupt; it comes
    between two steps of Python, so after a sleep.

    Args:
        function: A function of a module, so that nodes import it; it must come to the same however often it is run.
        lost: Called with a line for each task that was lost and is done again.

    Yields:
        The place of an item and its result, in order of completion.

    Raises:
        ConfigError: No node has a CPU, or one that joined has another rlctl.
        HostError: A task was lost too often, or no node with a CPU is left.
        Exception: What the function raised; an RlctlError says on which node.
    """
    if not cluster.cpus:
        raise ConfigError(f"no node of the Ray cluster at {cluster.address} offers a CPU; `ray start` one that does")
    task = ray.remote(_checked).options(num_cpus=1, max_retries=0, name=getattr(function, "__name__", "task"))
    submit = functools.partial(task.remote, our_version(), function)
    tries = [0] * len(items)
    running = {submit(item): place for place, item in enumerate(items)}
    try:
        while running:
            done = _next(cluster, running)
            place = running.pop(done)
            try:
                result = result_of(done)
            except LOST as error:
                said = f"task {place + 1} of {len(items)} was lost: {first_line(error)}"
                tries[place] += 1
                if tries[place] > RETRIES:
                    raise HostError(f"{said}; that was the {tries[place]}. time") from error
                lost(said)
                running[submit(items[place])] = place
            else:
                yield place, result
    finally:
        _cancel(list(running))


@functools.cache
def check_node(drivers: Version) -> None:
    """On the node, which may have joined after the check of all: ConfigError where the driver's rlctl is another."""
    check_version(ray.util.get_node_ip_address(), our_version(), drivers)


def result_of(reference: Any) -> Any:
    """What a task returned; an RlctlError that it raised is raised as it was, and any other as Ray's RayTaskError."""
    try:
        return ray.get(reference)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, RlctlError):
            raise error.cause from None
        raise


def _checked(drivers: Version, function: Callable[[Item], Result], item: Item) -> Result:
    check_node(drivers)
    try:
        return function(item)
    except RlctlError as error:
        raise told_by(ray.util.get_node_ip_address(), error) from None


def _next(cluster: Cluster, running: Mapping[Any, int]) -> Any:
    """The first that ends, well or not; HostError where none can, for there is no node for it."""
    deadline = None
    while True:
        ended, _ = ray.wait(list(running), timeout=LOOK_SECONDS)
        if ended:
            return ended[0]
        if cluster.cpus:
            deadline = None
        elif deadline is None:
            deadline = time.monotonic() + ROOM_SECONDS
        elif time.monotonic() > deadline:
            raise HostError(
                f"no node with a CPU is left or came back in {ROOM_SECONDS:g} s; {len(running)} tasks are not done"
            )


def _cancel(running: list[Any]) -> None:
    """End what runs as Ctrl-C would, and give it time to clean up."""
    for one in running:
        ray.cancel(one)
    if running:
        ray.wait(running, num_returns=len(running), timeout=CANCEL_SECONDS)
