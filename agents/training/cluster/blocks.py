"""Blocks of steps on hosts of a Ray cluster that hold something meanwhile, such as a testbed.

A block is done on one host, step by step, so that what is compared within it met the same host. The block of a host
that is lost begins anew on another one, or on the same when it is back; hosts that join late are used.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlctl.agents.served.network import first_line
from rlctl.agents.training.cluster.nodes import LIVE, TESTBED, Cluster, Node, StepResult, Version, our_version, told_by
from rlctl.agents.training.cluster.tasks import ALIVE_CHILDREN, LOOK_SECONDS, ROOM_SECONDS, check_node, result_of
from rlctl.envs.errors import ConfigError, HostError

LIVE_TESTBED: Mapping[str, float] = {TESTBED: 1.0, LIVE: 1.0}
"""What a host offers that may be measured on."""

LOSSES = 3
"""How often a node may be lost, and a block begun anew, before we do without it, or give up."""

CLOSE_SECONDS = 30.0
"""For hosts to put back what they changed."""

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

    Yields:
        Results block by block, as these are completed.

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
    work = _BlockQueue(cluster, hold, blocks, say)
    try:
        while work.waiting or work.running:
            work.begin()
            yield from work.arrivals()
        closing = [one.close.remote() for one in work.actors.values()]
        ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
    finally:
        for one in work.actors.values():
            ray.kill(one)


class _BlockQueue:
    """Which host does which block."""

    def __init__(
        self, cluster: Cluster, hold: Hold[Any, Any], blocks: Sequence[Sequence[Any]], say: Callable[[str], None]
    ) -> None:
        self._cluster, self._hold, self._blocks, self._say = cluster, hold, blocks, say
        self.waiting = deque(range(len(blocks)))
        self.running: dict[Any, tuple[int, Node]] = {}
        self.actors: dict[str, Any] = {}
        self._begun, self._losses = Counter[int](), Counter[str]()
        self._why, self._busy_at = "all nodes have gone", time.monotonic()

    def begin(self) -> None:
        """Give each free host a block; HostError where no host is left."""
        taken = {node.id for _, node in self.running.values()}
        nodes = [node for node in self._cluster.nodes if node.holds(LIVE_TESTBED)]
        for node in nodes:
            if self.waiting and node.id not in taken and self._losses[node.id] < LOSSES:
                block = self.waiting.popleft()
                self._begun[block] += 1
                actor = self.actors[node.id] = self.actors.get(node.id) or _begin(node, self._hold)
                self.running[actor.do.remote(self._blocks[block])] = block, node
        now = time.monotonic()
        self._busy_at = now if self.running else self._busy_at
        if now - self._busy_at > (0.0 if nodes else ROOM_SECONDS):
            raise HostError(f"no host is left to measure on: {self._why}")

    def arrivals(self) -> Iterator[StepResult[Any]]:
        """The results of blocks that end within a moment."""
        if not self.running:
            time.sleep(LOOK_SECONDS)
            return
        for reference in ray.wait(list(self.running), timeout=LOOK_SECONDS)[0]:
            block, node = self.running.pop(reference)
            try:
                results = result_of(reference)
            except exceptions.RayTaskError:
                raise
            except ConfigError as error:
                raise told_by(node.address, error) from None
            except (exceptions.RayError, HostError) as error:
                self._lose(block, node, error)
            else:
                yield from (StepResult(node.address, block, *one) for one in enumerate(results))

    def _lose(self, block: int, node: Node, error: Exception) -> None:
        """Begin a block anew; a host that raised by itself will do no better a second time, but another one may."""
        self._losses[node.id] += LOSSES if isinstance(error, HostError) else 1
        self._why = f"{node.address}: {first_line(error)}"
        ray.kill(self.actors.pop(node.id))
        self._say(f"repeat {block + 1} was lost, and is begun anew: {self._why}")
        if self._begun[block] > LOSSES:
            raise HostError(f"repeat {block + 1} was begun {self._begun[block]} times: {self._why}")
        self.waiting.appendleft(block)


class _Holder:
    """The actor on the host."""

    def __init__(self, drivers: Version, hold: Hold[Any, Any]) -> None:
        self._drivers, self._hold, self._stack = drivers, hold, contextlib.ExitStack()
        self._step: Callable[[Any], Any] | None = None

    def do(self, steps: Sequence[Any]) -> list[Any]:
        if self._step is None:
            check_node(self._drivers)
            self._step = self._stack.enter_context(self._hold())
        return [self._step(one) for one in steps]

    def close(self) -> None:
        self._stack.close()


def _begin(node: Node, hold: Hold[Any, Any]) -> Any:
    actor = ray.remote(_Holder).options(
        num_cpus=node.resources.get("CPU", 0.0),
        resources=dict(LIVE_TESTBED),
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        runtime_env={"env_vars": ALIVE_CHILDREN},
    )
    return actor.remote(our_version(), hold)
