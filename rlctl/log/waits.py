"""What the LC waits for, and the setting that helps: the same words in the log and in `rlctl top`."""

from __future__ import annotations

from collections.abc import Mapping

from rlctl.envs.telemetry import LC_LINK, Telemetry, number

WORTH_RATIO = 0.1
"""A share below it is not worth a word: for nine tenths of the time the LC then waits for nothing."""

LITTLE_CPUS = 0.05
"""BE that uses less is not what the LC waits behind."""

HELP: Mapping[str, str] = {
    "a CPU": "`be.cpus` without the LC's CPUs, or `be.weight: idle`, keeps BE off them",
    "its disk": "`resources.be_io_weight` or `be_disk_write_bytes_per_second` bounds what BE takes of it",
    "memory": "`resources.lc_memory_low_bytes` keeps the LC's, `be_memory_high_bytes` bounds BE's",
    "its link": "a class for the LC (`tc`, HTB) protects it where the link's rate is known",
}
"""What an LC can wait for, and the setting for that."""

ALONE = "not behind BE, which uses next to nothing; the LC needs more CPUs, or a greater weight than others"


def waits_of(telemetry: Telemetry) -> dict[str, float]:
    """Shares of the time for which the LC waited, the largest first; of its link the share of requests."""
    counters = telemetry.counters
    run_delay = number(telemetry.lc_run_delay_ratio)
    known = {
        # PSI where there is a cgroup2 group; else the threads' waits, which may add up to more than the time.
        "a CPU": number(telemetry.lc_pressure_ratio) if number(telemetry.lc_pressure_ratio) is not None else run_delay,
        "its disk": _counter(telemetry, "lc_io_pressure_ratio"),
        "memory": _counter(telemetry, "lc_memory_pressure_ratio"),
        "its link": _counter(telemetry, LC_LINK) if LC_LINK in counters else None,
    }
    found = {what: min(share, 1.0) for what, share in known.items() if share is not None}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def waiting_sentence(telemetry: Telemetry) -> str:
    """What the LC waits for most, and what helps; empty where it hardly waits."""
    what, share = next(iter(waits_of(telemetry).items()), ("", 0.0))
    if share < WORTH_RATIO:
        return ""
    of = "of its requests" if what == "its link" else "of the time"
    return f"the LC waits for {what} {share:.0%} {of}: {help_with(what, telemetry)}"


def help_with(what: str, telemetry: Telemetry) -> str:
    """The setting that helps, or that none of BE's does."""
    used = number(telemetry.be_cpus)
    return ALONE if what == "a CPU" and used is not None and used < LITTLE_CPUS else HELP[what]


def _counter(telemetry: Telemetry, name: str) -> float | None:
    reading = telemetry.counters.get(name)
    return None if reading is None else number(reading)
