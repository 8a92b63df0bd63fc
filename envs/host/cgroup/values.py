"""What kernel files hold: numbers, tables and CPUs, else a CgroupError that names the file; and a CPU quota."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupError
from rlctl.envs.host.decode import parse_cpus

# Default period. The same share in a 100-ms period burns in one burst and doubles the LC's p95 (measured, nginx).
PERIOD_US = 10_000

# The kernel takes no smaller quota: min_cfs_quota_period in kernel/sched/core.c.
MIN_QUOTA_US = 1_000

# The kernel takes no longer period: max_cfs_quota_period in kernel/sched/core.c.
MAX_PERIOD_US = 1_000_000

_ROUNDING = 1e-6  # what float arithmetic may take off a whole number of microseconds


@dataclass(frozen=True, slots=True)
class Quota:
    """CPU time per period.

    Attributes:
        quota_us: Microseconds of CPU time; None lifts the quota.
        period_us: Length of the period; without meaning while there is no quota.
        burst_us: CPU time that may be saved up and used beyond the quota later; what rlctl sets has none.
    """

    quota_us: int | None
    period_us: int = PERIOD_US
    burst_us: int = 0

    @classmethod
    def of_cpus(cls, cpus: float, period_us: int = PERIOD_US) -> Quota:
        """The quota nearest to so many CPUs that is not above them; never less than MIN_QUOTA_US in MAX_PERIOD_US.

        Args:
            cpus: CPU seconds per second, positive; `UNLIMITED` lifts the quota.
        """
        if cpus == UNLIMITED:
            return cls(None)
        # Rounded down, and the period up: the parts of a budget must not add up to more than it.
        quota_us = int(cpus * period_us + _ROUNDING)
        # A share below a tenth of a CPU (at 10 ms) would need a quota under the kernel's minimum: it gets the minimum,
        # in a longer period.
        if quota_us >= MIN_QUOTA_US:
            return cls(quota_us, period_us)
        return cls(MIN_QUOTA_US, math.ceil(min(MIN_QUOTA_US / cpus, MAX_PERIOD_US) - _ROUNDING))

    @property
    def cpus(self) -> float:
        """CPU seconds per second; UNLIMITED without a quota."""
        return UNLIMITED if self.quota_us is None else self.quota_us / self.period_us

    def same(self, other: Quota) -> bool:
        """True when the kernel would do the same: two lifted quotas are equal whatever their periods."""
        if self.quota_us is None or other.quota_us is None:
            return self.quota_us is other.quota_us
        return self == other


# As a kernel prints it; `int` takes 01, 1_000 and other scripts' digits too.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")


def number(content: str, path: Path) -> int:
    """The whole number that a file holds."""
    text = content.strip()
    if not _NUMBER.fullmatch(text):
        raise CgroupError(f"{path}: {text[:60]!r} is no number")
    return int(text)


def quota_of(quota_us: int | None, period_us: int, path: Path) -> Quota:
    """A quota that can be: of no CPU time, or in no time, there is none."""
    # A torn or foreign file must not be taken for a tight quota.
    if quota_us is not None and not (quota_us > 0 and period_us > 0):
        raise CgroupError(f"{path}: {quota_us} us in {period_us} us is no quota")
    return Quota(quota_us, period_us)


def table(content: str, path: Path) -> dict[str, int]:
    """The `key number` lines of cpu.stat and the like."""
    try:
        return {key: number(value, path) for key, value in map(str.split, content.splitlines())}
    except (ValueError, CgroupError):
        raise CgroupError(f"{path}: {content[:60]!r} is no table of numbers") from None


def cpu_set(content: str, path: Path) -> frozenset[int]:
    """The CPUs that a file lists."""
    try:
        return parse_cpus(content)
    except ValueError as error:
        raise CgroupError(f"{path}: {error}") from None
