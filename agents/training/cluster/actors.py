"""Work on a Ray cluster's nodes: how actors that stay on one node are begun, and what answers mean."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlctl.agents.served.network import first_line
from rlctl.agents.training.cluster.nodes import Node, Version, check_version, our_version
from rlctl.envs.errors import RlctlError

ALIVE_CHILDREN = {"RAY_kill_child_processes_on_worker_exit": "0"}
"""Environment of workers on a live testbed. Ray kills a worker's children otherwise: the keeper too, which is there to
clear up after it."""


class Lost(Exception):
    """A worker or its node went away, with why in a line."""


def started_on(
    node: Node, actor: type, *arguments: Any, cpus: float, resources: Mapping[str, float], live: bool
) -> Any:
    """An actor on a node, not started again by Ray; a `live` one changes the host, and leaves who puts all back."""
    options: dict[str, Any] = {
        "num_cpus": cpus,
        "resources": dict(resources),
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
    }
    if live:
        options["runtime_env"] = {"env_vars": ALIVE_CHILDREN}
    return ray.remote(actor).options(**options).remote(*arguments)


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


def answer(reference: Any) -> Any:
    """What an actor's method returned or raised, as `result_of`; Lost where the actor is gone or cannot be reached."""
    try:
        return result_of(reference)
    except exceptions.RayTaskError:
        raise
    except exceptions.ActorUnavailableError as error:
        raise Lost("it cannot be reached") from error
    except exceptions.RayError as error:
        raise Lost(first_line(error)) from error
