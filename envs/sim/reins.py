"""The reins of a simulated host: its CPUs, and its link or its disk, as `rlctl.envs.host.reins` moves them.

Under the CPUs' rein a level is a quota and a cpuset. Under another one the CPUs are BE's, and a level bounds its bytes:
as a share of what the link or disk is taken to carry, see `rlctl.envs.host.reins.carried_rate`.
"""

from __future__ import annotations

import numpy as np

from rlctl.envs.allocation import LITTLE_CPUS
from rlctl.envs.host.reins.carried_rate import (
    CALM_RATIO,
    CARRIED,
    DISK_SHARES,
    LEAST_BYTES,
    LINK_SHARES,
    begin_rate,
    judge_window,
    see_window,
)
from rlctl.envs.law import law
from rlctl.envs.reins import (
    CPU,
    DISK,
    LEAST_DISK_BYTES,
    LINK,
    LITTLE_RATIO,
    level_used,
    share_of_disk,
    share_of_link,
    weigh,
)
from rlctl.envs.rows import Row, Rows

HAND = [
    ("rein", "f8"), ("suspect", "f8"), ("windows", "f8"), ("seen_seconds", "f8"), ("taken_seconds", "f8"),
    ("others_bytes", "f8"), ("allowed_bytes", "f8"), ("fell_ratio", "f8"), *CARRIED,
]  # fmt: skip
"""Of a host's row: what `weigh` takes, what the LC moved last on its link or disk, what all might, by what share that
fell, and what it carries."""

NEARLY_FULL = 0.999


def begin_hand(rows: Rows, constants: Rows) -> None:
    """The CPUs' rein is in hand, on all hosts, and nothing speaks against it."""
    rows["rein"] = rows["suspect"] = CPU
    rows["taken_seconds"], rows["allowed_bytes"] = -np.inf, np.inf
    shares = [np.where(constants["rein"] == DISK, *both) for both in zip(DISK_SHARES, LINK_SHARES, strict=True)]
    begin_rate(rows, LEAST_BYTES, True, *shares)


def take_rein(rows: Rows, constants: Rows) -> None:
    """Have hosts' other reins in hand, where they have one, and known what those carry."""
    # Of a run that goes on: the link was full before, and so its rate is known.
    rows["rein"] = constants["rein"]
    rows["most_bytes"] = rows["carried_bytes"] = constants["link_bytes_per_second"]
    rows["is_new"] = False


@law
def level_of(c: Row, quota_cpus: float, cpuset_cpus: float) -> float:
    """BE's level as a share of everything, as `level_ratio` has it."""
    return min(quota_cpus, cpuset_cpus, c["host_cpus"]) / c["host_cpus"]


@law
def is_least(quota_cpus: float, cpuset_cpus: float) -> bool:
    """Whether it is the least level, which holds on the CPUs under each rein."""
    return min(quota_cpus, cpuset_cpus) <= LITTLE_CPUS


@law
def disk_room(host: Row, level: float) -> float:
    """Bytes per second that a level of the disk lets BE do."""
    carried = host["carried_bytes"]
    return max(share_of_disk(level, host["others_bytes"] / carried) * carried, LEAST_DISK_BYTES)


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
        carried = host["carried_bytes"]
        host["allowed_bytes"] = share_of_link(level, host["others_bytes"] / carried) * carried
        room = max(host["allowed_bytes"] - lc_bytes, 0.0)
    else:
        room = disk_room(host, level)
        host["allowed_bytes"] = lc_bytes + room
    # BE sleeps while its bytes wait, and comes back with the next ones: as if its quota were what these take.
    held = room / max(be_bytes, 1e-9)
    # The least level holds on the CPUs under each rein, as it does on a live host.
    return (min(quota_cpus, held), cpuset_cpus) if is_least(quota_cpus, cpuset_cpus) else (held, c["host_cpus"])


@law
def note_use(
    host: Row, c: Row, window: Row, level: float, lc_bytes: float, be_bytes: float, link: float, seconds: float
) -> None:
    """Write what was used of the rein in hand, and what the link or disk is seen to carry.

    Args:
        lc_bytes, be_bytes, link: Bytes per second that both sent, and that the link takes.
        seconds: Length of the period.
    """
    if host["rein"] == DISK:
        window["be_used_ratio"] = level * min(be_bytes / disk_room(host, level), 1.0)
    sent = lc_bytes + be_bytes
    # What a full link drops is sent again, and so its interface counts more than arrives.
    full = sent >= NEARLY_FULL * link
    see_window(host, sent * c["most_seen_ratio"] if full else sent, seconds)
    # The next level is a share of what the others leave by this window: nobody knows what they will send.
    host["others_bytes"], window["fell_ratio"], host["fell_ratio"] = lc_bytes, host["fell_ratio"], 0.0
    if host["rein"] == LINK:
        carried = host["carried_bytes"]
        others, share = min(lc_bytes / carried, 1.0), min(host["allowed_bytes"] / carried, 1.0)
        window["be_used_ratio"] = level_used(level, share, others, be_bytes / carried)
        window["others_ratio"] = others


@law
def note_latency(
    host: Row, c: Row, ratio: float, behind: bool, level: float, be_cpus: float, be_bytes: float, seconds: float
) -> None:
    """Have a window beside a BE that ran speak for a rein, and what is in hand learn from it, as `Reins.look` does.

    Args:
        ratio: Latency by the target.
        behind: The LC waited longer behind the link or disk than for its CPUs.
        be_cpus, be_bytes: What BE used in a second, of the CPUs beyond the least level.
    """
    rein, missed, burned = host["rein"], ratio > 1.0, be_cpus >= LITTLE_CPUS
    sent = be_bytes >= LITTLE_RATIO * host["carried_bytes"]
    used = burned if rein == CPU else sent
    # To hold BE by what it does not use is no hold at all.
    if missed and behind and sent:
        weigh(host, c["rein"], used, seconds, 1.0)
    elif missed and burned and not behind:
        weigh(host, float(CPU), used, seconds, 1.0)
    # A miss that BE's CPU time explains, with nothing waiting there, says nothing about what a link or disk carries.
    if rein != CPU and (behind or not missed or not burned):
        calm, allowed = ratio <= CALM_RATIO, host["allowed_bytes"]
        host["fell_ratio"] = judge_window(host, allowed, be_bytes, level, missed, calm, 1.0)
