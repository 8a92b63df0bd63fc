"""Training on the testbeds of a Ray cluster instead of hosts in this process; see `rlctl.agents.training.learn`.

    with connected("auto") as cluster:
        result = learn(run, rollouts=Rollouts(cluster))

All testbeds act at once by the newest policy, one call each, and the learner waits for all of them, as for the
EnvRunners of RLlib. One that dies is left out of the sample and begun anew; nodes may join at any time. While none is
lost, the same seed and the same testbeds give the same numbers.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import ray

from rlctl.agents.training.cluster.nodes import LIVE, TESTBED, Cluster, Node
from rlctl.agents.training.host_groups import Counts, Happened
from rlctl.agents.training.host_kinds import BLOCK_BITS, Hosts, HostShare, dealt, first_seed, present
from rlctl.agents.training.rollouts.learners import SampledHosts
from rlctl.agents.training.rollouts.live_testbed import LiveTestbed, LiveWorker
from rlctl.agents.training.rollouts.runners import Lost, Planned, Runner, Runners
from rlctl.agents.training.rollouts.sample import Orders, RolloutSample, join_samples
from rlctl.agents.training.rollouts.tally import SIMULATED, Tally
from rlctl.agents.training.rollouts.worker import SimWorker
from rlctl.envs.errors import ConfigError, HostError

WAIT_SECONDS = 300.0
"""Without any testbed after which a run ends, and without an answer from one after which it is left out."""

POLL_SECONDS = 0.5


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
        begun, part_of = itertools.count(), dict[tuple[str, int], int]()
        live = self.live

        def plan(node: Node, place: int) -> Planned:
            number = next(begun)
            draws = hash((seed, block, number)) & 0xFFFFFFFF
            if live is not None and place < node.resources.get(LIVE, 0.0):
                return Planned(live.name, partial(LiveWorker, replace(live, seed=draws)), live=True)
            part = part_of.setdefault((node.id, place), len(part_of)) % testbeds  # of one that comes back the same
            first = nth_seed(seed, share, block, number)
            return Planned(SIMULATED, partial(SimWorker, tuple(parts[part]), tuple(lags), first, draws))

        kinds = [kind.name for kind, _ in present(hosts, share * testbeds)] + ([live.name] if live else [])
        made = ClusterEnv(Runners(self.cluster, plan, self.say), count, lags, kinds, tally)
        made.wait_seconds, made.say = self.wait_seconds, self.say
        return made

    def _simulated(self) -> int:
        """Testbeds of now that simulate."""
        each = [node.resources for node in self.cluster.nodes]
        taken = [offered.get(LIVE, 0.0) if self.live else 0.0 for offered in each]
        return sum(int(max(offered.get(TESTBED, 0.0) - live, 0.0)) for offered, live in zip(each, taken, strict=True))


class ClusterEnv(SampledHosts):
    """The testbeds of a cluster; a sample counts as one of `num_envs` hosts, however many there are."""

    wait_seconds = WAIT_SECONDS
    say: Callable[[str], None] = staticmethod(lambda _: None)

    def __init__(
        self, runners: Runners, num_envs: int, lags: Sequence[int], kinds: Sequence[str], tally: Tally
    ) -> None:
        self._runners, self.kinds, self.tally = runners, list(kinds), tally
        self._has_begun = False
        self._taken: list[RolloutSample] = []
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
                self._runners.ask(one, replace(orders, steps=steps), reference)
            if (came := self._receive(asked, steps, going_on)) is None:
                return None
            parts = came
        self._taken.append(made := join_samples(parts))
        return made

    def take_counts(self) -> Counts:
        """What happened since the last call, by kind."""
        taken, self._taken = self._taken, []
        happened = [sum((one.happened.get(name, Happened()) for one in taken), Happened()) for name in self.kinds]
        rewards = [reward for one in taken for reward in one.episode_rewards]
        return Counts(happened, rewards, [steps for one in taken for steps in one.episode_steps])

    def close(self) -> None:
        """End all testbeds; live ones put back what they changed."""
        self._runners.close()

    def _gather(self, going_on: Callable[[], bool]) -> list[Runner] | None:
        """Whoever can be asked; the first time all of them, so that it is the same each time."""
        begun, told, runners = time.monotonic(), False, self._runners
        runners.look()
        runners.arrivals(0.0)
        while not (idle := runners.idle) or not (self._has_begun or all(one.count for one in runners.all)):
            runners.arrivals(POLL_SECONDS)
            if not going_on():
                return None
            if time.monotonic() - begun > self.wait_seconds:
                raise HostError(
                    f"no testbed has delivered anything for {self.wait_seconds:.0f} s; see that nodes with "
                    f"`{TESTBED}` run" + (f" ({runners.why})" if runners.why else "")
                )
            if not told and not runners.all:
                told = True
                self.say(f"no node offers `{TESTBED}`: waiting up to {self.wait_seconds:g} s for one")
            runners.look()
        self._has_begun = True
        return idle

    def _receive(self, asked: Sequence[Runner], steps: int, going_on: Callable[[], bool]) -> list[RolloutSample] | None:
        """Their samples, in their order; those that are lost, or do not answer, are counted and left out."""
        parts: dict[Runner, RolloutSample | Lost] = {}
        patience = self.wait_seconds + 2.0 * steps * max(one.tick_seconds for one in asked)
        begun = time.monotonic()
        while waiting := [one for one in asked if one not in parts]:
            parts |= {one: came for one, came in self._runners.arrivals(POLL_SECONDS) if one in waiting}
            if not going_on():
                return None
            if time.monotonic() - begun > patience:
                for one in (late for late in waiting if late not in parts):
                    self._runners.drop(one, f"it has not answered for {patience:.0f} s")
                    parts[one] = Lost("")
        for one in asked:
            self._count(one, parts[one], steps * one.count)
        return [part for one in asked if isinstance(part := parts[one], RolloutSample)]

    def _count(self, one: Runner, came: RolloutSample | Lost, wanted: int) -> None:
        tally = self.tally.of(one.name, one.planned.kind)
        if isinstance(came, RolloutSample):
            tally.learned += came.size
        else:
            tally.losses += 1
            tally.lost += wanted


def nth_seed(seed: int, count: int, block: int, number: int) -> int:
    """The seed of the first host of a session's n-th testbed, which no other has; `block` as in `host_kinds.build`."""
    blocks, place = divmod(number, (1 << BLOCK_BITS) // count)
    return first_seed(seed, count, block + blocks) + place * count
