"""What a service has learned of its host, in words: by load, the most that BE had while the target was kept."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, printable
from rlctl.envs.experience import SafeLevelMemory, allocation_at
from rlctl.envs.level_counts import TOP, load_of
from rlctl.report.page import render

HEADER = ("load", "BE may have", "one level more", "windows held", "missed")


def in_words(host: Mapping[str, Any], learned: Mapping[str, Any]) -> Iterator[str]:
    """What was learned: of the experience a table of the loads that came.

    Args:
        host: What it was learned on, of which `limits` are its `Limits`.
        learned: By name what each knew, and when it was kept.

    Raises:
        ConfigError: It is nothing that a service keeps.
    """
    try:
        limits = Limits(**host["limits"])
        for name, kept in learned.items():
            saved = datetime.datetime.fromtimestamp(kept["saved"]).strftime("%Y-%m-%d %H:%M")
            yield f"{printable(name)}, {saved}"
            yield _told(kept["memory"], limits)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError, ConfigError) as error:
        raise ConfigError(f"holds what no service keeps: {printable(str(error))[:80]}") from error


def _told(memory: Mapping[str, Any], limits: Limits) -> str:
    if "missed_rps" in memory:
        missed_rps, demand = memory["missed_rps"], memory.get("cpu_seconds_per_request")
        known = (
            None if demand is None else f"{1e3 * float(demand):.3g} ms of CPU a request",
            None if missed_rps is None else f"missed without BE at {float(missed_rps):.0f} rps",
        )
        return ", ".join(filter(None, known)) or "nothing that says it"
    if "missed" in memory:
        return f"{sum(int(count) for _, count in memory['missed'])} windows missed in the day before"
    experience = SafeLevelMemory(limits)
    experience.restore_state(memory)
    return render([HEADER, *_rows(experience, limits)])


def _rows(experience: SafeLevelMemory, limits: Limits) -> Iterator[tuple[str, ...]]:
    held, missed, _ = experience.counts().sum(axis=2)
    for place in range(len(held)):
        if held[place] + missed[place] <= 0.0:
            continue
        level, bearable = experience.look_up(load_of(place))
        most = str(allocation_at(level, limits)) if level >= 0 else "nothing yet"
        more = "to be tried" if bearable > level else "missed lately" if level < TOP else "-"
        yield f"{load_of(place):.2f}", most, more, f"{held[place]:.0f}", f"{missed[place]:.1f}"
