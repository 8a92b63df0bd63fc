"""Actors of a Ray cluster that act for one learner: one at each place where a node offers the resource `testbed`.

They come and go as their nodes do. One that is lost is begun anew; one that cannot begin is left out. A live one puts
back what it changed when it is closed; where its process is gone, the keeper that it started does
(`rlctl.envs.testbed.janitor`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlctl.agents.served.network import first_line
from rlctl.agents.training.cluster.nodes import LIVE, TESTBED, Cluster, Node, Version, our_version
from rlctl.agents.training.cluster.tasks import ALIVE_CHILDREN, check_node, result_of
from rlctl.agents.training.rollouts.sample import Orders, RolloutSample
from rlctl.agents.training.rollouts.worker import Worker
from rlctl.envs.errors import HostError, RlctlError

LOOK_SECONDS = 2.0
"""Between two looks at which nodes there are."""

RETRIES, RETRY_SECONDS = 3, 5.0
"""How often in a row an actor is begun anew at a place, and after how long, each time longer. Ray takes ten seconds or
so to see that a node is dead."""

CLOSE_SECONDS = 60.0
"""For a live testbed to end its sample and put everything back; then its keeper does."""

Place = tuple[str, int]
"""A node's id and a number from 0."""


class Lost(NamedTuple):
    """What comes in place of a sample where a worker or its node went away."""

    why: str


@dataclass(frozen=True, slots=True)
class Planned:
    """What shall act at a place; a `live` one takes the resource of this name, too."""

    kind: str
    start: Callable[[], Worker]
    live: bool = False


@dataclass(slots=True, eq=False)
class Runner:
    """An actor that was begun; `count`, its number of hosts, is 0 until they are there."""

    name: str
    planned: Planned
    place: Place
    actor: Any
    count: int = 0
    tick_seconds: float = 0.0
    asked_at: float | None = None


class _Actor:
    """The worker on its node, once the driver's rlctl was compared with the node's."""

    def begin(self, start: Callable[[], Worker], drivers: Version) -> tuple[int, float]:
        check_node(drivers)
        self._worker = start()
        return self._worker.count, self._worker.tick_seconds

    def sample(self, orders: Orders, weights: bytes) -> RolloutSample:
        return self._worker.sample(orders, weights)

    def close(self) -> None:
        self._worker.close()


class Runners:
    """All that are there now; `plan` says what acts at a node's n-th place whenever one begins there."""

    def __init__(self, cluster: Cluster, plan: Callable[[Node, int], Planned], say: Callable[[str], None]) -> None:
        self._cluster, self._plan, self._say = cluster, plan, say
        self.all: list[Runner] = []
        self.why = ""
        self._pending: dict[Any, Runner] = {}
        self._losses: dict[Place, int] = {}
        self._not_before: dict[Place, float] = {}
        self._look_at = 0.0

    @property
    def idle(self) -> list[Runner]:
        """Those that can be asked."""
        return [one for one in self.all if one.count and one.asked_at is None]

    def look(self) -> None:
        """Begin at each place that has no actor."""
        if (now := time.monotonic()) < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        taken = {one.place for one in self.all}
        for node in self._cluster.nodes:
            for number in range(int(node.resources.get(TESTBED, 0.0)) if node.holds({"CPU": 1}) else 0):
                place = node.id, number
                if place not in taken and now >= self._not_before.get(place, 0.0):
                    self._begin(node, number)

    def ask(self, one: Runner, orders: Orders, policy: Any) -> None:
        """Have an idle one act; `policy` is a reference to the network's bytes."""
        one.asked_at = time.monotonic()
        self._pending[one.actor.sample.remote(orders, policy)] = one

    def arrivals(self, seconds: float) -> list[tuple[Runner, RolloutSample | Lost]]:
        """What has come within some seconds of those that were asked.

        Raises:
            RlctlError: What an actor raised that had begun, but for a HostError: that is wrong everywhere.
        """
        if not self._pending:
            time.sleep(seconds)
            return []
        ray.wait(list(self._pending), timeout=seconds)
        done, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        came = [(one := self._pending.pop(reference), self._received(one, reference)) for reference in done]
        return [(one, result) for one, result in came if result is not None]

    def drop(self, one: Runner, why: str) -> None:
        """Do without one that does not answer."""
        self._leave(one, why)
        ray.kill(one.actor)

    def close(self) -> None:
        """End all; live ones put back what they changed."""
        closing = [one.actor.close.remote() for one in self.all if one.planned.live]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for one in self.all:
            ray.kill(one.actor)
        self.all.clear()
        self._pending.clear()

    def _begin(self, node: Node, number: int) -> None:
        planned = self._plan(node, number)
        actor = ray.remote(_Actor).options(
            num_cpus=1,
            resources={TESTBED: 1.0, LIVE: 1.0} if planned.live else {TESTBED: 1.0},
            max_restarts=0,  # the next one has other seeds
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            runtime_env={"env_vars": ALIVE_CHILDREN} if planned.live else None,
        )
        name = f"{node.address}-{node.id[:4]}" + (f"-{number + 1}" if number else "")
        one = Runner(name, planned, (node.id, number), actor.remote())
        self.all.append(one)
        self._pending[one.actor.begin.remote(planned.start, our_version())] = one

    def _received(self, one: Runner, reference: Any) -> RolloutSample | Lost | None:
        """A sample, or Lost; None when it has begun, or cannot."""
        has_begun, one.asked_at = one.count > 0, None
        try:
            came = result_of(reference)
        except exceptions.RayTaskError:
            raise
        except (exceptions.RayError, HostError) as error:
            lost = Lost(first_line(error))
            again = has_begun or not isinstance(error, HostError)
            self._leave(one, lost.why, again=again)
            return lost if has_begun else None
        except RlctlError as error:
            if has_begun:
                raise
            self._leave(one, str(error), again=False)
            return None
        if has_begun:
            self._losses.pop(one.place, None)
            made: RolloutSample = came
            return made
        one.count, one.tick_seconds = came
        self._say(f"testbed {one.name}: {one.count} {one.planned.kind}")
        return None

    def _leave(self, one: Runner, why: str, *, again: bool = True) -> None:
        """Do without it; its actor, if it still lives, puts back what it changed and ends when nobody holds it."""
        if one not in self.all:
            return
        self.all.remove(one)
        losses = self._losses[one.place] = self._losses.get(one.place, 0) + 1
        again = again and losses <= RETRIES
        self._not_before[one.place] = time.monotonic() + RETRY_SECONDS * losses if again else math.inf
        one.actor.close.remote()
        self.why = f"testbed {one.name} is {'lost' if again else 'left out'}: {why}"
        self._say(self.why)
