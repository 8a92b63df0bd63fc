"""The evidence that BE harms the LC over n hosts at once: `rlctl.safety.harm` in arrays, where the reasons stand.

The windows of simulated hosts do not overlap, and no LC there is known to be idle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlctl.envs.arrays import Array, Flags
from rlctl.envs.telemetry import MOST_LOAD_RATIO
from rlctl.safety.harm import (
    CAUTION_RATIO,
    HELD_CPUS,
    LEAST_LOAD_RATIO,
    LEFT_RATIO,
    LONGEST_SECONDS,
    MOST_WINDOWS,
    STALE_SECONDS,
)
from rlctl.safety.many.readings import Beliefs
from rlctl.safety.profile import Profile


class HarmRecords(NamedTuple):
    """What is known of the misses of n LCs: the fields of `HarmRecord`, arrays of shape (n,); NaN for None."""

    held_windows: Array
    held_missed_ratio: Array
    held_load_ratio: Array
    free_windows: Array
    free_missed_ratio: Array
    held_seconds: Array
    clean_seconds: Array
    suspect_seconds: Array
    sentence_seconds: Array
    cleared: Flags
    seen_seconds: Array

    @classmethod
    def start(cls, count: int) -> HarmRecords:
        """Nothing is known of `count` hosts."""
        zero = np.zeros(count)
        clean, cleared = np.full(count, LONGEST_SECONDS), np.zeros(count, bool)
        return cls(zero, zero, zero, zero, zero, zero, clean, zero, zero, cleared, np.full(count, np.nan))


def advance_harm(
    memory: HarmRecords, time_seconds: Array, be_cpus: Array, beliefs: Beliefs, profile: Profile
) -> HarmRecords:
    """The memory after a tick; hosts without a finite time learn nothing."""
    measured = profile.measured
    if measured is None or measured.control_windows is None:
        return memory
    now, slack, load = time_seconds, beliefs.slack_ratio, beliefs.load_ratio
    passed = np.minimum(np.fmax(now - memory.seen_seconds, 0.0), profile.gap_seconds)
    since = np.minimum(memory.clean_seconds + passed, LONGEST_SECONDS)
    held = (be_cpus >= 0.0) & (be_cpus <= HELD_CPUS)
    held_seconds = np.where(held, np.minimum(memory.held_seconds + passed, LONGEST_SECONDS), 0.0)
    held_windows = memory.held_windows * (1.0 - np.minimum(passed / STALE_SECONDS, 1.0))
    told, missed, loaded = ~np.isnan(slack), slack < profile.slack_suspend_ratio, load <= MOST_LOAD_RATIO
    # The control, and the windows in which BE ran; a mean that follows by one part in `windows`.
    control = told & held & (held_seconds - passed >= 0.5 * passed) & (passed > 0.0)
    counts = control & loaded
    more = np.minimum(held_windows + 1.0, MOST_WINDOWS)
    held_missed = np.where(
        counts, memory.held_missed_ratio + (1.0 / more) * (missed - memory.held_missed_ratio), memory.held_missed_ratio
    )
    held_load = np.where(
        counts, memory.held_load_ratio + (1.0 / more) * (load - memory.held_load_ratio), memory.held_load_ratio
    )
    held_windows = np.where(counts, more, held_windows)
    runs = told & ~held & (passed > 0.0)
    more = np.minimum(memory.free_windows + 1.0, MOST_WINDOWS)
    step = memory.free_missed_ratio + (1.0 / more) * (missed - memory.free_missed_ratio)
    free_missed, free_windows = (
        np.where(runs, step, memory.free_missed_ratio),
        np.where(runs, more, memory.free_windows),
    )
    # What the LC misses alone, and one standard deviation of it.
    enough = measured.control_windows * np.where(memory.suspect_seconds > 0.0, 1.0, LEFT_RATIO)
    alone = CAUTION_RATIO * held_missed
    most = alone + np.sqrt(alone / np.maximum(free_windows, 1.0))
    own = (held_windows >= enough) & (free_missed <= most) & loaded & (load >= LEAST_LOAD_RATIO * held_load)
    # The verdict, in the order of `HarmEvidence._judge`.
    suspect, sentence = memory.suspect_seconds, memory.sentence_seconds
    missed = missed & ~control
    blamed, suspected = told & missed & ~own, suspect > 0.0
    harm = blamed & ~suspected & (since <= profile.forget_strikes_seconds)
    longer = np.minimum(np.maximum(2.0 * sentence, measured.well_seconds), LONGEST_SECONDS)
    acquitted = told & ~blamed & suspected & own
    well = told & ~blamed & ~acquitted & ~missed
    after_suspect = np.where(blamed & suspected, sentence, np.where(harm, longer, suspect))
    after_suspect = np.where(acquitted, 0.0, after_suspect)
    after_suspect = np.where(well & suspected, np.maximum(suspect - passed, 0.0), after_suspect)
    after_sentence = np.where(harm, longer, np.where(acquitted, 0.5 * sentence, sentence))
    after_sentence = np.where(well & ~suspected, np.maximum(sentence - passed, 0.0), after_sentence)
    cleared = told & ~blamed & (after_suspect <= 0.0)
    clean = np.where(blamed, 0.0, since)
    after = HarmRecords(
        held_windows, held_missed, held_load, free_windows, free_missed, held_seconds, clean, after_suspect,
        after_sentence, cleared, now,
    )  # fmt: skip
    known = np.isfinite(now)
    if known.all():
        return after
    return HarmRecords(*(np.where(known, new, old) for new, old in zip(after, memory, strict=True)))
