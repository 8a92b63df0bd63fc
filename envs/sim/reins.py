"""The reins of a simulated host: its CPUs, and its link or its disk, as `rlctl.envs.host.reins` moves them.

Under the CPUs' rein a level is a quota and a cpuset. Under another one the CPUs are BE's, and a level bounds its bytes.
What was the most until now is known from the start: such a rein is taken only once the link or disk was full.
"""

from __future__ import annotations

import numpy as np

from rlctl.envs.allocation import Limits
from rlctl.envs.law import law
from rlctl.envs.reins import (
    CPU,
    LEAST_DISK_BYTES,
    LINK,
    LITTLE_CPUS,
    LITTLE_RATIO,
    level_used,
    share_of_disk,
    share_of_link,
    weigh,
)
from rlctl.envs.rows import Row, Rows

HAND = [
    ("rein", "f8"), ("suspect", "f8"), ("windows", "f8"), ("seen_seconds", "f8"), ("taken_seconds", "f8"),
    ("lc_share", "f8"),
]  # fmt: skip
"""Of a host's row: what `weigh` takes, and what the LC sent last on the link, by the most that was seen there."""

LEAST_CPUS = Limits(1).min_quota_cpus


def begin_hand(rows: Rows) -> None:
    """The CPUs' rein is in hand, on all hosts, and nothing speaks against it."""
    rows["rein"] = rows["suspect"] = CPU
    rows["taken_seconds"] = -np.inf


@law
def level_of(c: Row, quota_cpus: float, cpuset_cpus: float) -> float:
    """BE's level as a share of everything, as `level_ratio` has it."""
    return min(quota_cpus, cpuset_cpus, c["host_cpus"]) / c["host_cpus"]


@law
def is_least(quota_cpus: float, cpuset_cpus: float) -> bool:
    """Whether it is the least level, which holds on the CPUs under each rein."""
    return quota_cpus <= LEAST_CPUS and cpuset_cpus <= 1.0


@law
def disk_room(host: Row, c: Row, level: float) -> float:
    """Bytes per second that a level of the disk lets BE do."""
    return max(share_of_disk(level, host["lc_share"]) * c["link_most_bytes"], LEAST_DISK_BYTES)


@law
def on_cpus(
    host: Row, c: Row, quota_cpus: float, cpuset_cpus: float, be_bytes: float, lc_bytes: float
) -> tuple[float, float]:
    """Quota and CPUs of a BE whose bytes are held.

    Args:
        be_bytes: What a second of BE's CPU time puts on the link or disk.
        lc_bytes: Bytes per second that the LC sends.
    """
    level = level_of(c, quota_cpus, cpuset_cpus)
    if host["rein"] == LINK:
        # The LC's class is never held, and BE's borrows what it leaves, packet by packet.
        room = max(share_of_link(level, host["lc_share"]) * c["link_most_bytes"] - lc_bytes, 0.0)
    else:
        room = disk_room(host, c, level)
    # BE sleeps while its bytes wait, and comes back with the next ones: as if its quota were what these take.
    held = room / max(be_bytes, 1e-9)
    return (min(quota_cpus, held), cpuset_cpus) if is_least(quota_cpus, cpuset_cpus) else (held, c["host_cpus"])


@law
def note_use(host: Row, c: Row, window: Row, level: float, lc_bytes: float, be_bytes: float) -> None:
    """Write what was used of the rein in hand.

    Args:
        lc_bytes, be_bytes: Bytes per second that both sent.
    """
    others = min(lc_bytes / c["link_most_bytes"], 1.0)
    if host["rein"] == LINK:
        share, be = share_of_link(level, host["lc_share"]), be_bytes / c["link_most_bytes"]
        window["be_used_ratio"], window["others_ratio"] = level_used(level, share, others, be), others
    elif host["rein"] != CPU:
        window["be_used_ratio"] = level * min(be_bytes / disk_room(host, c, level), 1.0)
    host["lc_share"] = others


@law
def note_miss(host: Row, c: Row, behind: bool, be_cpus: float, be_bytes: float, seconds: float) -> None:
    """Have a window that was missed beside a BE that ran speak for a rein, as `ReinLaw` does by what sensors say.

    Args:
        behind: The LC waited longer behind the link or disk than for its CPUs.
        be_cpus, be_bytes: What BE used in a second, of the CPUs beyond the least level.
    """
    burned, sent = be_cpus >= LITTLE_CPUS, be_bytes >= LITTLE_RATIO * c["be_most_bytes"]
    # To hold BE by what it does not use is no hold at all.
    if behind and sent:
        weigh(host, c["rein"], burned if host["rein"] == CPU else sent, seconds)
    elif burned and not behind:
        weigh(host, float(CPU), burned if host["rein"] == CPU else sent, seconds)
