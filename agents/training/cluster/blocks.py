"""Blocks of steps on hosts of a Ray cluster that hold something meanwhile: a testbed, which takes a minute to start.

A block is done on one host, step by step, so that what is compared within it met the same host. The block of a host
that is lost begins anew on another one, or on the same when it is back; hosts that join late are used.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlctl.agents.training.cluster.nodes import (
    ALIVE_CHILDREN,
    LIVE,
    TESTBED,
    Cluster,
    Node,
    Version,
    check_version,
    our_version,
    told_by,
)
from rlctl.envs.errors import ConfigError, HostError, RlctlError

__all__ = ["LIVE_TESTBED", "Came", "map_blocks"]

LIVE_TESTBED: Mapping[str, float] = {TESTBED: 1.0, LIVE: 1.0}
"""What a host offers that may be measured on."""

LOSSES = 3
"""How often a node may be lost, and a block begun anew, before we do without it, or give up."""

LOOK_SECONDS = 2.0
ROOM_SECONDS = 60.0
"""For a host to come when there is none."""

BUSY_SECONDS = 180.0
"""A testbed with its search for the maximum load takes a minute or two; after that the user is told what may be."""

CLOSE_SECONDS = 30.0

Step = TypeVar("Step")
Result = TypeVar("Result")
Hold = Callable[[], AbstractContextManager[Callable[[Step], Result]]]
"""Entered on a host; what it yields does the steps there. It is pickled, and so are steps and results."""


@dataclass(frozen=True, slots=True)
class Came(Generic[Result]):
    """The result of a step.

    Attributes:
        host: Its node's address; from the second time on that something was held there, with the count.
        block, step: Places of the block and of the step in it. Step 0 begins the block, maybe again.
        result: What it came to.
    """

    host: str
    block: int
    step: int
    result: Result


def map_blocks(
    cluster: Cluster,
    hold: Hold[Step, Result],
    blocks: Sequence[Sequence[Step]],
    say: Callable[[str], None] = lambda _: None,
    *,
    resources: Mapping[str, float] = LIVE_TESTBED,
) -> Generator[Came[Result], None, None]:
    """Do every block, each on one host, on as many hosts at a time as there are.

    A host that holds something is given all its node's CPUs: no other task of the cluster disturbs it. Left early, it
    is killed; what it held is restored by whoever looks after that: a testbed by its keeper.

    Args:
        cluster: Where; the one that we are connected to.
        hold: What is entered on each host.
        blocks: Of steps, each of one at least.
        say: Takes a line on what became of a host.
        resources: What a node must offer.

    Yields:
        Results in order of completion; those of a block that is begun anew come again.

    Raises:
        ConfigError: No node offers the resources, or a step cannot be anywhere.
        HostError: No host is left, or a block was begun too often.
        Exception: What a step raised.
    """
    if not any(node.holds(resources) for node in cluster.nodes):
        offered = ", ".join(f'"{name}": {amount:g}' for name, amount in resources.items())
        raise ConfigError(
            f"no node of the Ray cluster at {cluster.address} is such a host: ray start --resources '{{{offered}}}'"
        )
    work = _Work(cluster, hold, blocks, say, resources)
    try:
        while work.left:
            yield from work.go_on()
        work.close()
    finally:
        work.kill()


class _Holder:
    """On the host."""

    def __init__(self, hold: Hold[Any, Any]) -> None:
        self._hold, self._stack = hold, contextlib.ExitStack()
        self._do: Callable[[Any], Any]

    def begin(self, drivers: Version) -> None:
        check_version(ray.util.get_node_ip_address(), our_version(), drivers)
        self._do = self._stack.enter_context(self._hold())

    def do(self, step: Any) -> Any:
        return self._do(step)

    def close(self) -> None:
        self._stack.close()


@dataclass(slots=True, eq=False)
class _Host:
    """One that holds something, or is about to."""

    name: str
    node: str
    actor: Any
    begun_at: float
    ready: bool = False
    block: int | None = None
    step: int = 0


class _Work:
    """Who does what."""

    def __init__(
        self,
        cluster: Cluster,
        hold: Hold[Any, Any],
        blocks: Sequence[Sequence[Any]],
        say: Callable[[str], None],
        resources: Mapping[str, float],
    ) -> None:
        self._cluster, self._hold, self._blocks, self._say = cluster, hold, blocks, say
        self._resources = resources
        self._waiting = deque(range(len(blocks)))
        self._begun = [0] * len(blocks)
        self.left = len(blocks)
        self._hosts: list[_Host] = []
        self._pending: dict[Any, _Host] = {}
        self._sessions: dict[str, int] = {}
        self._losses: dict[str, int] = {}
        self._why = ""
        self._told: set[str] = set()
        self._nobody_since: float | None = None

    def go_on(self) -> Iterator[Came[Any]]:
        """Wait for what comes next, for a moment at most."""
        self._look()
        self._hand_out()
        if not self._pending:
            time.sleep(LOOK_SECONDS)
            return
        done, _ = ray.wait(list(self._pending), timeout=LOOK_SECONDS)
        for reference in done:
            came = self._received(self._pending.pop(reference), reference)
            if came is not None:
                yield came

    def close(self) -> None:
        """Have all hosts put back what they changed."""
        closing = [one.actor.close.remote() for one in self._hosts if one.ready]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)

    def kill(self) -> None:
        """End all."""
        for one in self._hosts:
            ray.kill(one.actor)
        self._hosts.clear()

    def _look(self) -> None:
        """Begin on hosts that are free, as many as there are blocks for."""
        taken = {one.node for one in self._hosts}
        usable = [node for node in self._cluster.nodes if node.holds(self._resources) and self._is_used(node)]
        for node in usable:
            if node.id not in taken and len(self._hosts) < self.left:
                self._begin(node)
        self._tell_busy()
        if self._hosts:
            self._nobody_since = None
            return
        now = time.monotonic()
        self._nobody_since = self._nobody_since or now
        if now - self._nobody_since > (0.0 if self._why and not self._lost_some() else ROOM_SECONDS):
            raise HostError(f"no host is left to measure on: {self._why or 'all nodes have gone'}")

    def _is_used(self, node: Node) -> bool:
        return self._losses.get(node.id, 0) <= LOSSES

    def _lost_some(self) -> bool:
        """A node that was lost may come back, one that refused does not."""
        return any(0 < count <= LOSSES for count in self._losses.values())

    def _begin(self, node: Node) -> None:
        count = self._sessions[node.address] = self._sessions.get(node.address, 0) + 1
        actor = (
            ray.remote(_Holder)
            .options(
                num_cpus=node.resources.get("CPU", 0.0),
                resources=dict(self._resources),
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
                runtime_env={"env_vars": dict(ALIVE_CHILDREN)},
            )
            .remote(self._hold)
        )
        name = node.address if count == 1 else f"{node.address}-{count}"
        host = _Host(name, node.id, actor, time.monotonic())
        self._hosts.append(host)
        self._pending[actor.begin.remote(our_version())] = host

    def _tell_busy(self) -> None:
        for one in self._hosts:
            if not one.ready and one.name not in self._told and time.monotonic() - one.begun_at > BUSY_SECONDS:
                self._told.add(one.name)
                self._say(f"{one.name} has not begun yet: are its CPUs taken by other work of the cluster?")

    def _hand_out(self) -> None:
        for one in self._hosts:
            if one.ready and one.block is None and self._waiting:
                one.block, one.step = self._waiting.popleft(), 0
                self._begun[one.block] += 1
                self._ask(one)

    def _ask(self, host: _Host) -> None:
        assert host.block is not None
        self._pending[host.actor.do.remote(self._blocks[host.block][host.step])] = host

    def _received(self, host: _Host, reference: Any) -> Came[Any] | None:
        try:
            result = ray.get(reference)
        except exceptions.RayTaskError as error:
            self._failed(host, error)
        except exceptions.RayError as error:
            self._lost(host, str(error).strip().partition("\n")[0])
        else:
            if host.ready:
                return self._noted(host, result)
            host.ready = True
        return None

    def _noted(self, host: _Host, result: Any) -> Came[Any]:
        assert host.block is not None
        came = Came(host.name, host.block, host.step, result)
        host.step += 1
        if host.step < len(self._blocks[host.block]):
            self._ask(host)
        else:
            host.block = None
            self.left -= 1
        return came

    def _failed(self, host: _Host, error: exceptions.RayTaskError) -> None:
        """Its code raised. What a host cannot do another one may; what is asked for wrongly is wrong everywhere."""
        cause = error.cause
        if not isinstance(cause, RlctlError):
            raise error
        if host.ready and isinstance(cause, ConfigError):
            raise told_by(host.name, cause) from None
        if not host.ready:
            self._losses[host.node] = LOSSES  # it will not do better a second time
        self._lost(host, str(cause))

    def _lost(self, host: _Host, why: str) -> None:
        """Do without it; the actor, if it still lives, is ended, and what it held is restored."""
        self._losses[host.node] = self._losses.get(host.node, 0) + 1
        self._hosts.remove(host)
        ray.kill(host.actor)
        self._why = f"{host.name}: {why}"
        block = host.block
        if block is None:
            self._say(f"{host.name} is not used: {why}")
            return
        self._say(f"{host.name} was lost in step {host.step} of repeat {block + 1}, which is begun anew: {why}")
        if self._begun[block] > LOSSES:
            raise HostError(f"repeat {block + 1} was begun {self._begun[block]} times: {self._why}")
        self._waiting.appendleft(block)
