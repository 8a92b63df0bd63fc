"""The setting that helps against what the LC waits for: the same words in the log and in `rlctl top`."""

from __future__ import annotations

from collections.abc import Mapping

from rlctl.envs.reins import LITTLE_CPUS, WORTH_RATIO, waits_of
from rlctl.envs.telemetry import Telemetry, number

HELP: Mapping[str, str] = {
    "a CPU": "`be.cpus` without the LC's CPUs, or `be.weight: idle`, keeps BE off them",
    "its disk": "`resources.be_io_weight` or `be_disk_write_bytes_per_second` bounds what BE takes of it",
    "memory": "`resources.lc_memory_low_bytes` keeps the LC's, `be_memory_high_bytes` bounds BE's",
    "its link": "`be.reins` with link, and `be.link` where the interface is not found, hold BE there",
}
"""What an LC can wait for, and the setting for that."""

ALONE = "not behind BE, which uses next to nothing; the LC needs more CPUs, or a greater weight than others"


def waiting_sentence(telemetry: Telemetry, *, frozen: bool = False) -> str:
    """What the LC waits for most, and the setting that helps, or that none does; empty where it hardly waits."""
    what, share = next(iter(waits_of(telemetry).items()), ("", 0.0))
    if share < WORTH_RATIO:
        return ""
    used = 0.0 if frozen else number(telemetry.be_cpus)
    helps = ALONE if what == "a CPU" and used is not None and used < LITTLE_CPUS else HELP[what]
    of = "of its requests" if what == "its link" else "of the time"
    return f"the LC waits for {what} {share:.0%} {of}: {helps}"
