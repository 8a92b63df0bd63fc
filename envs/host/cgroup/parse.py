"""Contents of kernel files as numbers; anything else becomes a CgroupError that names the file."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.host.cpulist import parse_cpus

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


def child_groups(knobs: Knobs, group: Path) -> tuple[Path, ...]:
    """Child groups that exist at this moment; none when the group itself vanished."""
    with contextlib.suppress(OSError):
        return knobs.kernel.subgroups(group)
    return ()
