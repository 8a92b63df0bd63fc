"""Training on the testbeds of a Ray cluster instead of hosts in this process; see `rlctl.agents.training.learn`.

    with connected("auto") as cluster:
        result = learn(run, rollouts=Rollouts(cluster))

An actor acts at each place where a node offers the resource `testbed`. All act at once by the newest policy, one call
each, and the learner waits for all of them, as for the EnvRunners of RLlib. One that dies is left out of the sample and
begun anew; one that cannot begin is left out for good; nodes may join at any time. While none is lost, the same seed
and the same testbeds give the same numbers.

A live one puts back what it changed when it is closed; where its process is gone, the keeper that it started does
(`rlctl.envs.testbed.janitor`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlctl.agents.served.network import first_line
from rlctl.agents.training.cluster.nodes import LIVE, TESTBED, Cluster, Node, Version, our_version
from rlctl.agents.training.cluster.tasks import ALIVE_CHILDREN, check_node, result_of
from rlctl.agents.training.host_groups import Counts
from rlctl.agents.training.host_kinds import BLOCK_BITS, Hosts, HostShare, dealt, first_seed
from rlctl.agents.training.rollouts.learners import SampledHosts
from rlctl.agents.training.rollouts.live_testbed import LiveTestbed, LiveWorker
from rlctl.agents.training.rollouts.worker import Orders, RolloutSample, SimWorker, Worker, join_samples
from rlctl.agents.training.training_run import SIMULATED, Tally
from rlctl.envs.errors import ConfigError, HostError, RlctlError

WAIT_SECONDS = 300.0
"""Without any testbed after which a run ends, and without an answer from one after which it is left out."""

POLL_SECONDS = 0.5

RETRIES, RETRY_SECONDS = 3, 5.0
"""How often in a row an actor is begun anew at a place, and after how long, each time longer. Ray takes ten seconds or
so to see that a node is dead."""

LOOK_SECONDS = 2.0
"""Between two looks at which nodes there are."""

CLOSE_SECONDS = 60.0
"""For a live testbed to end its sample and put everything back; then its keeper does."""

Place = tuple[str, int]
"""A node's id and a number from 0."""

Planned = tuple[str, Callable[[], Worker]]
"""What shall act at a place: SIMULATED, or the name of a live testbed; and what begins it there."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Where a run's transitions come from; nodes that offer `live` simulate, too, where `live` is None."""

    cluster: Cluster
    live: LiveTestbed | None = None
    wait_seconds: float = WAIT_SECONDS
    say: Callable[[str], None] = lambda _: None

    def env(self, hosts: Hosts, count: int, seed: int, lags: Sequence[int], block: int, tally: Tally) -> ClusterEnv:
        """The environment that a learner asks; of `count` simulated hosts each testbed of now simulates its share."""
        testbeds = max(self._simulated(), 1)
        share = -(-count // testbeds)
        if share > (most := 1 << BLOCK_BITS):
            raise ConfigError(f"{count} hosts are {share} on each of {testbeds} testbeds; {most} are the most")
        parts = [[HostShare.of(kind, own, hosts) for kind, own in part] for part in dealt(hosts, share, testbeds)]
        begun, part_of = itertools.count(), dict[Place, int]()
        live = self.live

        def plan(node: Node, number: int) -> Planned:
            place = next(begun)
            draws = hash((seed, block, place)) & 0xFFFFFFFF
            if live is not None and number < node.resources.get(LIVE, 0.0):
                return live.scenario.name, partial(LiveWorker, replace(live, seed=draws))
            part = part_of.setdefault((node.id, number), len(part_of)) % testbeds  # of one that comes back the same
            first = nth_seed(seed, share, block, place)
            return SIMULATED, partial(SimWorker, tuple(parts[part]), tuple(lags), first, draws)

        return ClusterEnv(self, plan, count, lags, tally)

    def _simulated(self) -> int:
        """Testbeds of now that simulate."""
        each = [node.resources for node in self.cluster.nodes]
        taken = [offered.get(LIVE, 0.0) if self.live else 0.0 for offered in each]
        return sum(int(max(offered.get(TESTBED, 0.0) - live, 0.0)) for offered, live in zip(each, taken, strict=True))


@dataclass(slots=True, eq=False)
class Runner:
    """An actor that was begun.

    Attributes:
        answer: Reference to what it does now: at first it begins, then its samples.
        count: Its number of hosts, 0 until they are there.
    """

    name: str
    kind: str
    place: Place
    actor: Any
    answer: Any
    count: int = 0
    tick_seconds: float = 0.0


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


class ClusterEnv(SampledHosts):
    """The testbeds of a cluster; a sample counts as one of `num_envs` hosts, however many there are.

    Args:
        plan: Says what acts at a node's n-th place, whenever one begins there.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        plan: Callable[[Node, int], Planned],
        num_envs: int,
        lags: Sequence[int],
        tally: Tally,
    ) -> None:
        self._cluster, self._plan, self.tally = rollouts.cluster, plan, tally
        self.wait_seconds, self.say = rollouts.wait_seconds, rollouts.say
        self.runners: list[Runner] = []
        self._why, self._has_begun, self._counts = "", False, Counts()
        self._losses, self._not_before, self._look_at = Counter[Place](), dict[Place, float](), 0.0
        super().__init__(num_envs, lags)

    def sample(
        self, policy: bytes, orders: Orders, wanted: int = 0, going_on: Callable[[], bool] = lambda: True
    ) -> RolloutSample | None:
        """What all testbeds of now do, but for those that are lost meanwhile; HostError where none is left."""
        reference, parts = ray.put(policy), list[RolloutSample]()
        while not parts:
            if (asked := self._gather(going_on)) is None:
                return None
            steps = max(orders.steps, -(-wanted // sum(one.count for one in asked)))
            for one in asked:
                one.answer = one.actor.sample.remote(replace(orders, steps=steps), reference)
            if (came := self._receive(asked, steps, going_on)) is None:
                return None
            parts = came
        made = join_samples(parts)
        self._counts += made.counts
        return made

    def take_counts(self) -> Counts:
        """What happened since the last call, by kind."""
        taken, self._counts = self._counts, Counts()
        return taken

    def close(self) -> None:
        """End all testbeds; live ones put back what they changed."""
        if closing := [one.actor.close.remote() for one in self.runners if one.kind != SIMULATED]:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for one in self.runners:
            ray.kill(one.actor)
        self.runners.clear()

    def _gather(self, going_on: Callable[[], bool]) -> list[Runner] | None:
        """Whoever can be asked; the first time all of them, so that it is the same each time."""
        begun, told = time.monotonic(), False
        while True:
            self._begin_where_free()
            for one in [one for one in self.runners if not one.count and ray.wait([one.answer], timeout=0)[0]]:
                if came := self._answer_of(one):
                    one.count, one.tick_seconds = came
                    self.say(f"testbed {one.name}: {one.count} {one.kind}")
            ready = [one for one in self.runners if one.count]
            late = time.monotonic() - begun > self.wait_seconds
            if ready and (self._has_begun or late or len(ready) == len(self.runners)):
                self._has_begun = True
                return ready
            if not going_on():
                return None
            if late:
                raise HostError(
                    f"no testbed has delivered anything for {self.wait_seconds:.0f} s; see that nodes with "
                    f"`{TESTBED}` run" + (f" ({self._why})" if self._why else "")
                )
            if not told and not self.runners:
                told = True
                self.say(f"no node offers `{TESTBED}`: waiting up to {self.wait_seconds:g} s for one")
            time.sleep(POLL_SECONDS)

    def _receive(self, asked: Sequence[Runner], steps: int, going_on: Callable[[], bool]) -> list[RolloutSample] | None:
        """Their samples, in their order; those that are lost, or do not answer, are counted and left out."""
        patience = self.wait_seconds + 2.0 * steps * max(one.tick_seconds for one in asked)
        end, parts = time.monotonic() + patience, dict[Runner, RolloutSample | None]()
        while waiting := {one.answer: one for one in asked if one not in parts}:
            for answer in ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_SECONDS)[0]:
                parts[waiting[answer]] = self._answer_of(waiting[answer])
            if not going_on():
                return None
            if time.monotonic() > end:
                for one in (late for late in waiting.values() if late not in parts):
                    self._leave(one, f"it has not answered for {patience:.0f} s")
                    ray.kill(one.actor)
                    parts[one] = None
        for one in asked:
            self._count(one, parts[one], steps * one.count)
        return [part for one in asked if (part := parts[one])]

    def _count(self, one: Runner, came: RolloutSample | None, wanted: int) -> None:
        tally = self.tally.of(one.name, one.kind)
        if came:
            tally.learned += came.size
            self._losses.pop(one.place, None)
        else:
            tally.losses += 1
            tally.lost += wanted

    def _begin_where_free(self) -> None:
        """Begin at each place that has no actor."""
        if (now := time.monotonic()) < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        taken = {one.place for one in self.runners}
        for node in self._cluster.nodes:
            for number in range(int(node.resources.get(TESTBED, 0.0)) if node.holds({"CPU": 1}) else 0):
                place = node.id, number
                if place not in taken and now >= self._not_before.get(place, 0.0):
                    self._begin(node, number)

    def _begin(self, node: Node, number: int) -> None:
        kind, start = self._plan(node, number)
        actor = ray.remote(_Actor).options(
            num_cpus=1,
            resources={TESTBED: 1.0} if kind == SIMULATED else {TESTBED: 1.0, LIVE: 1.0},
            max_restarts=0,  # the next one has other seeds
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            runtime_env=None if kind == SIMULATED else {"env_vars": ALIVE_CHILDREN},
        )
        made = actor.remote()
        name = f"{node.address}-{node.id[:4]}" + (f"-{number + 1}" if number else "")
        answer = made.begin.remote(start, our_version())
        self.runners.append(Runner(name, kind, (node.id, number), made, answer))

    def _answer_of(self, one: Runner) -> Any:
        """What an actor has come to; None where it is lost, or cannot begin.

        Raises:
            RlctlError: What it raised once it had begun, but for a HostError: that is wrong everywhere.
        """
        try:
            return result_of(one.answer)
        except exceptions.RayTaskError:
            raise
        except (exceptions.RayError, HostError) as error:
            self._leave(one, first_line(error), again=one.count > 0 or not isinstance(error, HostError))
        except RlctlError as error:
            if one.count:
                raise
            self._leave(one, str(error), again=False)
        return None

    def _leave(self, one: Runner, why: str, *, again: bool = True) -> None:
        """Do without it; its actor, if it still lives, puts back what it changed and ends when nobody holds it."""
        self.runners.remove(one)
        self._losses[one.place] += 1
        losses = self._losses[one.place]
        again = again and losses <= RETRIES
        self._not_before[one.place] = time.monotonic() + RETRY_SECONDS * losses if again else math.inf
        one.actor.close.remote()
        self._why = f"testbed {one.name} is {'lost' if again else 'left out'}: {why}"
        self.say(self._why)


def nth_seed(seed: int, count: int, block: int, number: int) -> int:
    """The seed of the first host of a session's n-th testbed, which no other has; `block` as in `host_kinds.build`."""
    blocks, place = divmod(number, (1 << BLOCK_BITS) // count)
    return first_seed(seed, count, block + blocks) + place * count
