"""What happens in a tick in which something fails: BE goes to the safe allocation, and the loop goes on.

The tick stands in `rlctl.loop.control`, its steps here: a host that cannot be read, a policy that raises, a watchdog
that cannot be asked, a write that is refused. Only failures that last end the loop.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from rlctl.agents.policy_runner import SAFE, Decision, PolicyRunner
from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import CgroupGone, HostError, in_one_line
from rlctl.envs.host.events import Seldom
from rlctl.envs.plant import Plant
from rlctl.envs.telemetry import Missing, Telemetry, Why, worst_of
from rlctl.safety.verdict import Verdict

if TYPE_CHECKING:
    from rlctl.safety.lease import Lease

FAILURES_IN_A_ROW, FAILURES_SECONDS = 10, 10.0
"""Failed ticks in a row (reading, deciding or writing), and the time that they take, after which the loop ends. What
lasts for so long does not heal by itself."""


def raise_if_lease_lost(lease: Lease | None) -> None:
    """End a loop that has lost its lease before it writes; HostError: the lease is lost."""
    # Somebody else has put back the originals (`rlctl restore`, the watchdog). To write now would undo that, and nobody
    # would put them back a second time.
    if lease and (why := lease.why_lost()):
        raise HostError(f"no longer in charge: {why}")


def reason_unwatched(lease: Lease | None) -> str:
    """Why the lease keeps BE at the safe allocation; empty if it does not."""
    try:
        return lease.check() if lease else ""
    except Exception as error:  # noqa: BLE001 - a watchdog that cannot be asked does not watch
        return f"the watchdog cannot be asked: {in_one_line(error)}"


class Failsafe:
    """The steps of a tick on a plant that may fail at any, and the end of the loop when that lasts too long.

    Attributes:
        unwritten_in_a_row: Number of the last ticks in which not even the safe allocation could be written.
    """

    def __init__(self, plant: Plant) -> None:
        self._plant = plant
        self._last = Telemetry(time_seconds=0.0, target_seconds=0.0)
        self.unwritten_in_a_row = self._wrong_in_a_row = 0
        # Whichever is longer: ten ticks of 0.1 s are too short to call a host lost.
        self._most_in_a_row = max(FAILURES_IN_A_ROW, round(FAILURES_SECONDS / plant.tick_seconds))
        self._policy, self._write = Seldom(logging.WARNING), Seldom(logging.ERROR)

    def read(self) -> tuple[Telemetry, str]:
        """All readings and an empty text; or, if the host cannot be read, no reading and why."""
        why = ""
        try:
            self._last = self._plant.read()
        except Exception as error:  # noqa: BLE001 - whatever it was, the tick goes on
            # An unread host counts as one whose readings are lost: the sensor guard then asks for the safe allocation.
            why = f"reading failed: {in_one_line(error)}"
            self._last = worst_of({name: self._without_readings(lc, why) for name, lc in self._last.lcs.items()})
        return self._last, why

    def _without_readings(self, last: Telemetry, why: str) -> Telemetry:
        """No reading of an LC that had some: the shield's sensor guard then asks for the safe allocation.

        Time goes on by a period, so that the guards' cool-downs pass and the log stays in order.
        """
        lost = Missing(Why.GONE, why)
        now = last.time_seconds + self._plant.tick_seconds if last.time_seconds else time.monotonic()
        return Telemetry(
            now, last.target_seconds, tail_latency_seconds=lost, oldest_request_seconds=lost, load_ratio=lost,
            counters=dict.fromkeys(last.counters, lost),
        )  # fmt: skip

    def decide(
        self, runner: PolicyRunner, telemetry: Telemetry, current: Allocation, *, cut: bool
    ) -> tuple[Decision, str]:
        """What the runner decides and an empty text; or, where a guard fails, the safe allocation and why."""
        try:
            decision = runner.decide(telemetry, current, cut=cut)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave BE where it is
            safe, why = runner.limits.safe, f"deciding failed: {in_one_line(error)}"
            return Decision(safe, Verdict(safe, safe), SAFE, why), why
        why = in_one_line(decision.error) if decision.error else ""
        self._policy.tell(why and f"policy {runner.policy.name} failed: {why}; BE gets the safe allocation")
        return decision, ""

    def apply(self, allocation: Allocation) -> tuple[Allocation, str]:
        """Write an allocation, or the safe one if that fails. What is in force then, and what failed.

        Raises:
            HostError: The host has refused every write for too long, and BE is not frozen.
        """
        try:
            applied = self._plant.apply(allocation)
        except Exception as error:  # noqa: BLE001 - whatever it was, BE may be where it should not be
            # A write that fails halfway may have freed one knob: the safe allocation is written over it.
            self._write.tell(f"write failed: {in_one_line(error)}")
            return self._retreat(), in_one_line(error)
        self._write.tell("")
        self.unwritten_in_a_row = 0
        return applied, ""

    def count(self, fault: str) -> None:
        """Count one more tick, and what failed in it before the write; empty if nothing did.

        Raises:
            HostError: One tick too many in a row went wrong; BE is at the safe allocation.
        """
        # Ten faults in a row do not heal by themselves; systemd restarts the service, and the watchdog holds BE.
        self._wrong_in_a_row = self._wrong_in_a_row + 1 if fault else 0
        if self._wrong_in_a_row >= self._most_in_a_row:
            raise HostError(f"{self._wrong_in_a_row} ticks in a row went wrong: {fault}")

    def _retreat(self) -> Allocation:
        """BE to the safe allocation; what is in force then; HostError: refused for too long, and BE is not frozen."""
        safe = self._plant.limits.safe
        try:
            applied = self._plant.apply(safe)
        except Exception as error:
            current = self._plant.current
            # A frozen BE uses no CPU time, so the loop may go on.
            if current.frozen and not isinstance(error, CgroupGone):
                self.unwritten_in_a_row = 0
                return current
            self.unwritten_in_a_row += 1
            if self.unwritten_in_a_row >= self._most_in_a_row:
                why = f"{self.unwritten_in_a_row} ticks in a row could not be written: {in_one_line(error)}"
                raise HostError(why) from error
            return current
        self.unwritten_in_a_row = 0
        return applied
