"""Training on the testbeds of a Ray cluster instead of hosts in this process; see `rlctl.agents.training.learn`.

    with connected("auto") as cluster:
        result = learn(run, rollouts=Rollouts(cluster))

Testbeds answer when they can, with whole segments (`segment_env`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import ray

from rlctl.agents.training.cluster.nodes import LIVE, TESTBED, Cluster, Node
from rlctl.agents.training.host_groups import Counts, Happened
from rlctl.agents.training.host_kinds import BLOCK_BITS, Group, Hosts, dealt, first_seed, present
from rlctl.agents.training.rollouts.live_testbed import LiveRunning, LiveTestbed
from rlctl.agents.training.rollouts.segment_env import SegmentEnv
from rlctl.agents.training.rollouts.segments import Orders, Segment, steps_for
from rlctl.agents.training.rollouts.tally import SIMULATED, Tally
from rlctl.agents.training.rollouts.testbeds import Arrival, Planned, Testbed, Testbeds
from rlctl.agents.training.rollouts.worker import SimRunning
from rlctl.envs.errors import ConfigError

WAIT_SECONDS = 300.0
"""Without anything from any testbed after which a run ends."""

MOST_BEHIND = 1
"""Versions that the policy may have gone on since a segment was asked for, for PPO to learn from it."""

LATE_RATIO, LATE_SECONDS = 2.0, 1.0
"""A testbed is late when it takes that many times as long as the first of its rollout or, live, as its ticks; and never
before so long."""

LEAST_SHARE = 0.5
"""Of a rollout: with so much of it nobody waits for those who are late."""

POLL_SECONDS = 0.5


class ClusterEnv(SegmentEnv):
    """The testbeds of a cluster; a rollout counts as `num_envs` hosts, however many there are."""

    def __init__(self, testbeds: Testbeds, num_envs: int, lags: Sequence[int], kinds: Sequence[str]) -> None:
        self._testbeds, self.tally = testbeds, testbeds.tally
        self.kinds = list(kinds)
        self._clear()
        super().__init__(num_envs, lags)

    def publish(self, policy: bytes) -> None:
        """Let the next version of the policy, a weights.npz, act in what is asked for from now on."""
        super().publish(ray.put(policy))

    def rollout(self, wanted: int, most_steps: int, *, masked: bool) -> Iterator[Segment | None]:
        """Segments of this version and those not far behind.

        Those who are late are not waited for once half of it is there; what they send later is for the next rollout, or
        stale.
        """
        begun, first, got = time.monotonic(), None, 0
        while got < wanted:
            late_at = begun + max(LATE_RATIO * (first - begun), LATE_SECONDS) if first else float("inf")
            asked = [one for one in self._testbeds if one.orders and one.orders.version == self.version]
            on_time = [one for one in asked if self._is_on_time(one, late_at)]
            if asked and not on_time and got >= LEAST_SHARE * wanted:
                return
            missing = wanted - got - sum(one.expected for one in on_time)
            hosts = sum(one.ready.count for one in self._testbeds if one.idle and one.ready)
            if missing > 0 and hosts:
                self._ask(Orders(self.version, steps_for(missing, hosts, most_steps), masked=masked))
            before = got
            for one in self._testbeds.arrivals(POLL_SECONDS):
                if not self._note(one, MOST_BEHIND):  # as in `stream`, not before it is asked for
                    first, got = first or time.monotonic(), got + one.segment.size
                    yield one.segment
            if got == before:
                yield None

    def stream(self, wanted: int, steps: int, epsilon: float) -> Iterator[Segment | None]:
        """Whatever comes; nobody stands still meanwhile."""
        got, orders = 0, Orders(self.version, steps, epsilon)
        while got < wanted:
            self._ask(orders)
            before = got
            for one in self._testbeds.arrivals(POLL_SECONDS):
                self._note(one, None)  # not before it is asked for: whoever stops learns from none of the others
                got += one.segment.size
                yield one.segment
            if got == before:
                yield None
        self._ask(orders)

    def take_counts(self) -> Counts:
        """What happened since the last call, by kind."""
        happened = [self._happened.get(name, Happened()) for name in self.kinds]
        counts = Counts(happened, self._rewards, self._steps)
        self._clear()
        return counts

    def close(self) -> None:
        """End all testbeds; live ones put back what they changed."""
        self._testbeds.close()

    @staticmethod
    def _is_on_time(one: Testbed, late_at: float) -> bool:
        assert one.orders
        assert one.ready
        ticks = LATE_RATIO * one.orders.steps * one.ready.tick_seconds
        return time.monotonic() < (one.asked_at + ticks + LATE_SECONDS if ticks else late_at)

    def _ask(self, orders: Orders) -> None:
        for one in self._testbeds:
            if one.idle:
                self._testbeds.ask(one, orders, self._policy)

    def _note(self, one: Arrival, most_behind: int | None) -> bool:
        """Count a segment; True when it is stale."""
        segment, behind = one.segment, self.version - one.segment.version
        stale = most_behind is not None and behind > most_behind
        self.tally.came(one.testbed.name, segment.size, behind, one.age_seconds, stale=stale)
        for name, counts in segment.happened.items():
            self._happened[name] = self._happened.get(name, Happened()) + counts
        self._rewards += segment.episode_rewards
        self._steps += segment.episode_steps
        return stale

    def _clear(self) -> None:
        self._happened: dict[str, Happened] = {}
        self._rewards: list[float] = []
        self._steps: list[float] = []


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
        parts = [[Group.of(kind, own, hosts) for kind, own in part] for part in dealt(hosts, share, testbeds)]
        begun, part_of = itertools.count(), dict[tuple[str, int], int]()
        live = self.live

        def plan(node: Node, place: int) -> Planned:
            number = next(begun)
            draws = hash((seed, block, number)) & 0xFFFFFFFF
            if live is not None and place < node.resources.get(LIVE, 0.0):
                return Planned(live.name, partial(LiveRunning, replace(live, seed=draws)), draws, live=True)
            part = part_of.setdefault((node.id, place), len(part_of)) % testbeds  # of one that comes back the same
            own, first = tuple(parts[part]), nth_seed(seed, share, block, number)
            simulated = partial(SimRunning, own, tuple(lags), first)
            return Planned(SIMULATED, simulated, draws)

        kinds = [kind.name for kind, _ in present(hosts, share * testbeds)] + ([live.name] if live else [])
        return ClusterEnv(Testbeds(self.cluster, plan, tally, self.wait_seconds, self.say), count, lags, kinds)

    def _simulated(self) -> int:
        """Testbeds of now that simulate."""
        each = [node.resources for node in self.cluster.nodes]
        taken = [offered.get(LIVE, 0.0) if self.live else 0.0 for offered in each]
        return sum(int(max(offered.get(TESTBED, 0.0) - live, 0.0)) for offered, live in zip(each, taken, strict=True))


def nth_seed(seed: int, count: int, block: int, number: int) -> int:
    """The seed of the first host of a session's n-th testbed, which no other has; `block` as in `host_kinds.build`."""
    blocks, place = divmod(number, (1 << BLOCK_BITS) // count)
    return first_seed(seed, count, block + blocks) + place * count
