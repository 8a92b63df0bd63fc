"""The control loop: one tick reads as one sentence."""

from __future__ import annotations

import gc
import logging
import threading
import time
from dataclasses import dataclass

from rlctl.agents.policy import Policy
from rlctl.envs.actions import decode
from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import CgroupBusy, CgroupError, HostError, PermissionMissing
from rlctl.envs.observation import Observation, Observer
from rlctl.envs.plant import Plant
from rlctl.record import Recorder, Tick
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Verdict

__all__ = ["Controller", "Totals"]

log = logging.getLogger(__name__)

WRITE_FAILURES_IN_A_ROW = 10
"""So many ticks in a row that could not be written end the loop: something is wrong that time does not heal."""


@dataclass(slots=True)
class Totals:
    """Counts since the start; ticks, and those in which something went wrong."""

    ticks: int = 0
    policy_errors: int = 0
    write_errors: int = 0
    overrides: int = 0
    missed_deadlines: int = 0


class Controller:
    """Reads, decides, rules, writes and records, once per control period.

    Args:
        plant: What is controlled.
        policy: Who decides.
        shield: Who has the last word; None only where a benchmark judges a manager bare, as it was published.
        recorder: Where each tick goes.
    """

    def __init__(self, plant: Plant, policy: Policy, shield: Shield | None, recorder: Recorder) -> None:
        self.plant = plant
        self.policy = policy
        self.shield = shield
        self.recorder = recorder
        self.observer = Observer(plant.limits, plant.tick_seconds)
        self.totals = Totals()
        self._failed_in_a_row = 0

    def run(
        self, *, ticks: int | None = None, seconds: float | None = None, stop: threading.Event | None = None
    ) -> Totals:
        """Control until the given number of ticks or seconds is over, or `stop` is set.

        Raises:
            HostError: The host refuses every write.
        """
        self.begin()
        begun = time.monotonic()
        while not (stop and stop.is_set()):
            if ticks is not None and self.totals.ticks >= ticks:
                break
            if seconds is not None and time.monotonic() - begun >= seconds:
                break
            self.totals.missed_deadlines += self.plant.wait()
            self.tick()
        return self.totals

    def begin(self) -> None:
        """Reset everybody and put BE where the policy begins; under a shield that is the safe allocation."""
        gc.collect()
        gc.freeze()  # what stands now is no garbage: a full collection amid a tick would take 10 ms to find that out
        self.observer.reset()
        start = self.policy.start(self.plant.limits)
        if self.shield:
            self.shield.reset()
            start = self.plant.limits.safe
        try:
            self.plant.apply(start)
        except CgroupBusy as error:  # a task deep in the kernel; every tick tries again
            log.warning("the first allocation is not in force yet: %s", error)
        self.plant.reset()

    def tick(self) -> Tick:
        """One control period: the sentence.

        Raises:
            HostError: The host refuses every write.
        """
        begun = time.perf_counter()
        before = self.plant.current
        telemetry = self.plant.read()
        mask = self.shield.mask(telemetry, before) if self.shield and self.policy.masked else None
        read = time.perf_counter()
        proposed, note, failed = self._decide(self.observer.observe(telemetry, before, mask))
        verdict = self.shield.rule(telemetry, before, proposed) if self.shield else Verdict(proposed, proposed)
        decided = time.perf_counter()
        applied, failure = self._apply(verdict.allocation)
        tick = Tick(
            index=self.totals.ticks,
            wall_seconds=time.time(),
            telemetry=telemetry,
            before=before,
            proposed=proposed,
            verdict=verdict,
            applied=applied,
            policy=self.policy.name,
            note=note,
            error=failure,
            read_seconds=read - begun,
            decision_seconds=decided - read,
            tick_seconds=time.perf_counter() - begun,
            missed_deadlines=self.totals.missed_deadlines,
        )
        self._count(tick, failed)
        self.recorder.write(tick)
        return tick

    def _decide(self, observation: Observation) -> tuple[Allocation, str, bool]:
        """Proposal, note, and whether the policy failed: then BE gets the safe allocation for this tick."""
        limits = self.plant.limits
        try:
            return decode(self.policy.act(observation), observation.current, limits), self.policy.note, False
        except Exception as error:  # noqa: BLE001 - a policy is not trusted to be right, nor to fail in a known way
            log.warning("policy %s failed: %s; BE gets the safe allocation", self.policy.name, error)
            return limits.safe, f"policy failed: {error!r}", True

    def _apply(self, allocation: Allocation) -> tuple[Allocation, str]:
        """Write the verdict; if that fails try the safe allocation, and report what is in force."""
        try:
            applied = self.plant.apply(allocation)
        except (CgroupError, PermissionMissing) as error:
            log.error("write failed: %s", error)
            return self._retreat(), str(error)
        self._failed_in_a_row = 0
        return applied, ""

    def _retreat(self) -> Allocation:
        """Take BE to the safe allocation; a host that keeps refusing even that ends the loop.

        A freeze that is ordered and does not come, with all else in force, is no refusal: a task deep in the kernel or
        out of quota stops when it next runs, and the next tick looks again.
        """
        safe = self.plant.limits.safe
        try:
            applied = self.plant.apply(safe)
        except (CgroupError, PermissionMissing) as error:
            current = self.plant.current
            if isinstance(error, CgroupBusy) and current.but(frozen=True).at_most(safe):
                return current
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= WRITE_FAILURES_IN_A_ROW:
                raise HostError(f"{self._failed_in_a_row} ticks in a row could not be written: {error}") from error
            return self.plant.current
        self._failed_in_a_row = 0
        return applied

    def _count(self, tick: Tick, policy_failed: bool) -> None:
        self.totals.ticks += 1
        self.totals.policy_errors += policy_failed
        self.totals.write_errors += bool(tick.error)
        self.totals.overrides += tick.verdict.overridden
