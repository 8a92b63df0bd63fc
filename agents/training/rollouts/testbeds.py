"""Testbeds of a Ray cluster that act for one learner: one actor each, wherever a node offers the resource `testbed`.

They join and leave as their nodes do. A node that is lost takes what it was asked for with it, and is used again when
it is back; a testbed that cannot be started is told about and left alone, whatever the others on its node do. On a live
testbed that loses its actor, the keeper that it started (`rlctl.envs.testbed.janitor`) ends what it ran and removes its
groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray

from rlctl.agents.training.cluster.actors import Lost, answer, check_node, started_on
from rlctl.agents.training.cluster.nodes import LIVE, TESTBED, Cluster, Node, Version, our_version
from rlctl.agents.training.rollouts.segments import Orders, Segment
from rlctl.agents.training.rollouts.tally import Tally
from rlctl.agents.training.rollouts.worker import Ready, Running, Worker
from rlctl.envs.errors import HostError, PolicyError, RlctlError

LOOK_SECONDS = 2.0
"""Between two looks at which nodes there are."""

RETRIES, RETRY_SECONDS = 3, 15.0
"""How often an actor is started again on a node where it is lost before anything comes, and after how long: Ray takes
ten seconds or so to see that a node is dead."""

CLOSE_SECONDS = 60.0
"""For a live testbed to end its segment and put everything back; then its keeper does."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What shall run on a testbed; a `live` one needs the resource of this name, too."""

    kind: str
    start: Callable[[], Running]
    seed: int
    live: bool = False


@dataclass(slots=True, eq=False)
class Testbed:
    """A testbed that was started.

    Attributes:
        name: Its node's address and the beginning of the node's id; the place on it from the second on.
        place: Number of the testbed on its node, from 0.
        ready: What it said when its hosts were there; None until then.
        orders: What it does now; None while it is idle.
    """

    __test__ = False

    name: str
    kind: str
    node: str
    place: int
    live: bool
    actor: Any
    ready: Ready | None = None
    orders: Orders | None = None
    asked_at: float = 0.0

    @property
    def where(self) -> tuple[str, int]:
        """Its node and its place there."""
        return self.node, self.place

    @property
    def idle(self) -> bool:
        """It can be asked for a segment."""
        return self.ready is not None and self.orders is None

    @property
    def expected(self) -> int:
        """Number of transitions that it was asked for."""
        return self.orders.steps * self.ready.count if self.orders and self.ready else 0


class Arrival(NamedTuple):
    """A segment that came, by its age in seconds since it was asked for: no transition in it is older."""

    testbed: Testbed
    segment: Segment
    age_seconds: float


class _Actor(Worker):
    """The worker on its node."""

    def begin(self, drivers: Version = ("", "")) -> Ready:
        check_node(drivers)
        return super().begin()


class _Trouble(NamedTuple):
    """Losses of a testbed in a row, and until when it is left alone."""

    losses: int = 0
    until: float = 0.0


class Testbeds:
    """All testbeds that are there now; `plan` says what runs on a node's n-th one, counted from 0."""

    __test__ = False

    def __init__(
        self,
        cluster: Cluster,
        plan: Callable[[Node, int], Planned],
        tally: Tally,
        wait_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._plan, self._wait_seconds, self._say = cluster, plan, wait_seconds, say
        self.tally = tally
        self._all: list[Testbed] = []
        self._pending: dict[Any, Testbed] = {}
        self._trouble: dict[tuple[str, int], _Trouble] = {}
        self._look_at, self._waited, self._told = 0.0, 0.0, False

    def __iter__(self) -> Iterator[Testbed]:
        return (one for one in self._all if one.ready)

    def ask(self, testbed: Testbed, orders: Orders, policy: Any) -> None:
        """Have an idle testbed act; `policy` is a reference to the network's bytes."""
        testbed.orders, testbed.asked_at = orders, time.monotonic()
        self._pending[testbed.actor.segment.remote(orders, policy)] = testbed

    def arrivals(self, seconds: float) -> list[Arrival]:
        """What has come within some seconds, new and lost nodes noted; HostError where nothing came for too long."""
        begun = time.monotonic()
        if begun >= self._look_at:
            self._look()
            self._look_at = time.monotonic() + LOOK_SECONDS
        done = self._done(seconds)
        came = [one for one in map(self._received, done) if one is not None]
        self._note_waiting(time.monotonic() - begun, alive=bool(done))
        return came

    def close(self) -> None:
        """End all; live ones put back what they changed."""
        closing = [one.actor.close.remote() for one in self._all if one.live]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for one in self._all:
            ray.kill(one.actor)
        self._all.clear()
        self._pending.clear()

    def _look(self) -> None:
        """Begin on each testbed that has no actor."""
        taken = {one.where for one in self._all}
        now = time.monotonic()
        for node in self._cluster.nodes:
            for place in range(int(node.resources.get(TESTBED, 0.0))):
                where = node.id, place
                left_alone = now < self._trouble.get(where, _Trouble()).until
                if node.holds({"CPU": 1}) and where not in taken and not left_alone:
                    self._begin(node, place)

    def _begin(self, node: Node, place: int) -> None:
        planned = self._plan(node, place)
        resources = {TESTBED: 1.0, LIVE: 1.0} if planned.live else {TESTBED: 1.0}
        actor = started_on(node, _Actor, planned.start, planned.seed, cpus=1, resources=resources, live=planned.live)
        name = f"{node.address}-{node.id[:4]}" + (f"-{place + 1}" if place else "")
        made = Testbed(name, planned.kind, node.id, place, planned.live, actor)
        self._all.append(made)
        self._pending[actor.begin.remote(our_version())] = made

    def _done(self, seconds: float) -> list[Any]:
        """References to what has come, one at least unless nothing does in time."""
        if not self._pending:
            time.sleep(seconds)
            return []
        done, _ = ray.wait(list(self._pending), timeout=seconds)
        if done:
            done, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        return list(done)

    def _received(self, reference: Any) -> Arrival | None:
        testbed = self._pending.pop(reference)
        try:
            came = answer(reference)
        except Lost as error:
            self._lost(testbed, str(error))
        except PolicyError:  # wrong everywhere
            raise
        except RlctlError as error:
            self._failed(testbed, error)
        else:
            return self._noted(testbed, came)
        return None

    def _noted(self, testbed: Testbed, came: Ready | Segment) -> Arrival | None:
        if isinstance(came, Ready):
            testbed.ready = came
            self.tally.of(testbed.name, testbed.kind)
            self._say(f"testbed {testbed.name}: {came.count} {testbed.kind}")
            return None
        testbed.orders = None
        self._trouble.pop(testbed.where, None)
        return Arrival(testbed, came, time.monotonic() - testbed.asked_at)

    def _failed(self, testbed: Testbed, error: RlctlError) -> None:
        if testbed.ready is not None and isinstance(error, HostError):
            self._lost(testbed, str(error))
            return
        self._leave(testbed, _Trouble(until=float("inf")))
        self._say(f"testbed {testbed.name} is left out: {error}")

    def _lost(self, testbed: Testbed, why: str) -> None:
        if testbed.ready is not None:
            self.tally.lost(testbed.name, testbed.expected)
        losses = self._trouble.get(testbed.where, _Trouble()).losses + 1
        again = losses <= RETRIES
        self._leave(testbed, _Trouble(losses, time.monotonic() + RETRY_SECONDS * losses if again else float("inf")))
        self._say(f"testbed {testbed.name} is lost{'' if again else ' and left out'}: {why}")

    def _leave(self, testbed: Testbed, trouble: _Trouble) -> None:
        """Do without it; its actor, if it still lives, puts back what it changed and ends when nobody holds it."""
        self._trouble[testbed.where] = trouble
        self._all.remove(testbed)
        testbed.actor.close.remote()

    def _note_waiting(self, seconds: float, *, alive: bool) -> None:
        """Wait, but not for ever."""
        if alive:
            self._waited, self._told = 0.0, False
            return
        self._waited += seconds
        if self._waited >= self._wait_seconds:
            raise HostError(
                f"no testbed has delivered anything for {self._waited:.0f} s; see that nodes with `{TESTBED}` run"
            )
        if not self._told and not self._all:
            self._told = True
            self._say(f"no node offers `{TESTBED}`: waiting up to {self._wait_seconds:g} s for one")
