"""Blocks of steps on hosts of a Ray cluster that hold something meanwhile: a testbed, which takes a minute to start.

A block is done on one host, step by step, so that what is compared within it met the same host. The block of a host
that is lost begins anew on another one, or on the same when it is back; hosts that join late are used.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from rlctl.agents.training.cluster.actors import Lost, answer, check_node, started_on
from rlctl.agents.training.cluster.nodes import LIVE, TESTBED, Cluster, Node, StepResult, Version, our_version, told_by
from rlctl.envs.errors import ConfigError, HostError, RlctlError

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


def map_blocks(
    cluster: Cluster,
    hold: Hold[Step, Result],
    blocks: Sequence[Sequence[Step]],
    say: Callable[[str], None] = lambda _: None,
) -> Generator[StepResult[Result], None, None]:
    """Do every block, each on one host, on as many hosts at a time as there are.

    A host that holds something is given all its node's CPUs: no other task of the cluster disturbs it. Left early, it
    is killed; what it held is restored by whoever looks after that: a testbed by its keeper.

    Args:
        blocks: Steps of each block, one at least.

    Yields:
        Results in order of completion; those of a block that is begun anew come again.

    Raises:
        ConfigError: No node offers a live testbed, or a step cannot be anywhere.
        HostError: No host is left, or a block was begun too often.
        Exception: What a step raised.
    """
    if not any(node.holds(LIVE_TESTBED) for node in cluster.nodes):
        offered = ", ".join(f'"{name}": {amount:g}' for name, amount in LIVE_TESTBED.items())
        raise ConfigError(
            f"no node of the Ray cluster at {cluster.address} is such a host: ray start --resources '{{{offered}}}'"
        )
    work = _Work(cluster, hold, blocks, say)
    try:
        while work.left:
            yield from work.go_on()
        work.close()
    finally:
        work.kill()


class _Holder:
    """The actor on the host."""

    def __init__(self, hold: Hold[Any, Any]) -> None:
        self._hold, self._stack = hold, contextlib.ExitStack()
        self._do: Callable[[Any], Any]

    def begin(self, drivers: Version) -> None:
        check_node(drivers)
        self._do = self._stack.enter_context(self._hold())

    def do(self, step: Any) -> Any:
        return self._do(step)

    def close(self) -> None:
        self._stack.close()


@dataclass(slots=True, eq=False)
class _Host:
    """A host that holds something, or is about to."""

    name: str
    node: str
    actor: Any
    begun_at: float
    ready: bool = False
    block: int | None = None
    step: int = 0


class _Work:
    """Which host does which block."""

    def __init__(
        self,
        cluster: Cluster,
        hold: Hold[Any, Any],
        blocks: Sequence[Sequence[Any]],
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._hold, self._blocks, self._say = cluster, hold, blocks, say
        self._waiting = deque(range(len(blocks)))
        self._begun = [0] * len(blocks)
        self.left = len(blocks)
        self._hosts: list[_Host] = []
        self._pending: dict[Any, _Host] = {}
        self._sessions: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._why = ""
        self._told: set[str] = set()
        self._nobody_since: float | None = None

    def go_on(self) -> Iterator[StepResult[Any]]:
        """Wait for what comes next, for a moment at most."""
        self._look()
        for host in self._hosts:
            if host.ready and host.block is None and self._waiting:
                host.block, host.step = self._waiting.popleft(), 0
                self._begun[host.block] += 1
                self._ask(host)
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
        """End the actors of all hosts."""
        for one in self._hosts:
            ray.kill(one.actor)
        self._hosts.clear()

    def _look(self) -> None:
        """Begin on hosts that are free, as many as there are blocks for."""
        taken = {one.node for one in self._hosts}
        for node in self._cluster.nodes:
            usable = node.holds(LIVE_TESTBED) and self._losses[node.id] <= LOSSES
            if usable and node.id not in taken and len(self._hosts) < self.left:
                self._begin(node)
        self._tell_busy()
        if self._hosts:
            self._nobody_since = None
            return
        now = time.monotonic()
        self._nobody_since = self._nobody_since or now
        # A node that was lost may come back, one that refused does not.
        some_lost = any(0 < count <= LOSSES for count in self._losses.values())
        if now - self._nobody_since > (0.0 if self._why and not some_lost else ROOM_SECONDS):
            raise HostError(f"no host is left to measure on: {self._why or 'all nodes have gone'}")

    def _begin(self, node: Node) -> None:
        self._sessions[node.address] += 1
        count, cpus = self._sessions[node.address], node.resources.get("CPU", 0.0)
        actor = started_on(node, _Holder, self._hold, cpus=cpus, resources=LIVE_TESTBED, live=True)
        host = _Host(node.address if count == 1 else f"{node.address}-{count}", node.id, actor, time.monotonic())
        self._hosts.append(host)
        self._pending[actor.begin.remote(our_version())] = host

    def _tell_busy(self) -> None:
        for one in self._hosts:
            if not one.ready and one.name not in self._told and time.monotonic() - one.begun_at > BUSY_SECONDS:
                self._told.add(one.name)
                self._say(f"{one.name} has not begun yet: are its CPUs taken by other work of the cluster?")

    def _ask(self, host: _Host) -> None:
        assert host.block is not None
        self._pending[host.actor.do.remote(self._blocks[host.block][host.step])] = host

    def _received(self, host: _Host, reference: Any) -> StepResult[Any] | None:
        try:
            result = answer(reference)
        except Lost as error:
            self._lost(host, str(error))
        except RlctlError as error:
            self._failed(host, error)
        else:
            if host.ready:
                return self._noted(host, result)
            host.ready = True
        return None

    def _noted(self, host: _Host, result: Any) -> StepResult[Any]:
        assert host.block is not None
        came = StepResult(host.name, host.block, host.step, result)
        host.step += 1
        if host.step < len(self._blocks[host.block]):
            self._ask(host)
        else:
            host.block = None
            self.left -= 1
        return came

    def _failed(self, host: _Host, error: RlctlError) -> None:
        """Its code raised. What a host cannot do another one may; what is asked for wrongly is wrong everywhere."""
        if host.ready and isinstance(error, ConfigError):
            raise told_by(host.name, error) from None
        if not host.ready:
            self._losses[host.node] = LOSSES  # it will not do better a second time
        self._lost(host, str(error))

    def _lost(self, host: _Host, why: str) -> None:
        """Do without it; the actor, if it still lives, is ended, and what it held is restored."""
        self._losses[host.node] += 1
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
