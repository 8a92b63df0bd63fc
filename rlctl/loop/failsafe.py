"""What becomes of a tick in which something fails: BE goes to the safe allocation, and the loop goes on.

The tick stands in `rlctl.loop.control`. Here is what happens when a step of it fails: a host that cannot be read, a
policy that raises, a watchdog that cannot be asked, a write that is refused. Only what time does not heal ends it.
"""

from __future__ import annotations

import logging
from typing import Protocol

from rlctl.agents.seat import SAFE, Decision, Seat
from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import CgroupBusy, HostError, in_one_line
from rlctl.envs.plant import Plant
from rlctl.envs.telemetry import Missing, Telemetry, Why
from rlctl.safety.verdict import Verdict

__all__ = ["FAILURES_IN_A_ROW", "Failsafe", "Lease", "stay_in_charge", "unwatched"]

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 10
"""So many ticks in a row that could not be written, or that went wrong in a way nobody foresaw, end the loop:
something is wrong that time does not heal."""


class Lease(Protocol):
    """What a watchdog lends the loop: while it is renewed, the watchdog leaves BE to the loop."""

    def check(self) -> str:
        """Why BE must be at the safe allocation in this tick; empty if all is well."""
        ...

    def renew(self, *, safe: bool = False) -> None:
        """A tick is complete: the shield ruled, and its verdict is in force; or the safe allocation is, as `safe`."""
        ...

    def lost(self) -> str:
        """Why the loop is no longer in charge: the originals were restored behind its back; empty while it is."""
        ...


def stay_in_charge(lease: Lease | None) -> None:
    """Write nothing where somebody else has put back the originals: the loop would undo it, and for ever.

    Raises:
        HostError: The lease is lost.
    """
    if lease and (why := lease.lost()):
        raise HostError(f"no longer in charge: {why}")


def unwatched(lease: Lease | None) -> str:
    """Why the lease keeps BE at the safe allocation; empty if it does not."""
    try:
        return lease.check() if lease else ""
    except Exception as error:  # noqa: BLE001 - a watchdog that cannot be asked does not watch
        return f"the watchdog cannot be asked: {in_one_line(error)}"


class Failsafe:
    """Reads and writes a plant that may fail at both, and says when that has lasted too long.

    Args:
        plant: The plant.

    Attributes:
        unwritten_in_a_row: Ticks so far in which not even the safe allocation could be written.
    """

    def __init__(self, plant: Plant) -> None:
        self._plant = plant
        self._last = Telemetry(time_seconds=0.0, target_seconds=0.0)
        self.unwritten_in_a_row = self._wrong_in_a_row = 0

    def read(self) -> tuple[Telemetry, str]:
        """All readings; or, one period after the last, none of them and why."""
        why = ""
        try:
            self._last = self._plant.read()
        except Exception as error:  # noqa: BLE001 - of a host that cannot be read nothing is known: the shield's matter
            why = f"reading failed: {in_one_line(error)}"
            lost = Missing(Why.GONE, why)
            self._last = Telemetry(
                self._last.time_seconds + self._plant.tick_seconds,
                self._last.target_seconds,
                tail_latency_seconds=lost,
                oldest_request_seconds=lost,
                load_ratio=lost,
            )
        return self._last, why

    def decide(self, seat: Seat, telemetry: Telemetry, current: Allocation) -> tuple[Decision, str]:
        """What the seat decides; or, when it cannot for a fault of ours, the safe allocation and why."""
        try:
            decision = seat.decide(telemetry, current)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave BE where it is
            safe, why = seat.limits.safe, f"deciding failed: {in_one_line(error)}"
            return Decision(safe, Verdict(safe, safe), SAFE, why), why
        if decision.error:
            log.warning(
                "policy %s failed: %s; BE gets the safe allocation", seat.policy.name, in_one_line(decision.error)
            )
        return decision, ""

    def apply(self, allocation: Allocation) -> tuple[Allocation, str]:
        """Write an allocation; if that fails try the safe one. What is in force, and what failed.

        Raises:
            HostError: The host has refused every write for too long, and BE is not frozen.
        """
        try:
            applied = self._plant.apply(allocation)
        except Exception as error:  # noqa: BLE001 - whatever it was, BE may be where it should not be
            log.error("write failed: %s", in_one_line(error))
            return self._retreat(), in_one_line(error)
        self.unwritten_in_a_row = 0
        return applied, ""

    def count(self, wrong: str) -> None:
        """A tick has passed, in which this went wrong before the write; empty if nothing did.

        Raises:
            HostError: One tick too many in a row went wrong; BE is at the safe allocation.
        """
        self._wrong_in_a_row = self._wrong_in_a_row + 1 if wrong else 0
        if self._wrong_in_a_row >= FAILURES_IN_A_ROW:
            raise HostError(f"{self._wrong_in_a_row} ticks in a row went wrong: {wrong}")

    def _retreat(self) -> Allocation:
        """Take BE to the safe allocation; a host that keeps refusing even that ends the loop, unless BE is frozen.

        A freeze that is ordered and does not come, with all else in force, is no refusal: a task deep in the kernel or
        out of quota stops when it next runs, and the next tick looks again.
        """
        safe = self._plant.limits.safe
        try:
            applied = self._plant.apply(safe)
        except Exception as error:
            current = self._plant.current
            if current.frozen or (isinstance(error, CgroupBusy) and current.but(frozen=True).at_most(safe)):
                self.unwritten_in_a_row = 0
                return current
            self.unwritten_in_a_row += 1
            if self.unwritten_in_a_row >= FAILURES_IN_A_ROW:
                why = f"{self.unwritten_in_a_row} ticks in a row could not be written: {in_one_line(error)}"
                raise HostError(why) from error
            return current
        self.unwritten_in_a_row = 0
        return applied
