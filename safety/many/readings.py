"""Which readings of many hosts may be believed: `rlctl.safety.trust` in arrays.

`Trust` there has the rules with their reasons. `tests/safety/many/test_shield.py` holds both equal to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlctl.envs.arrays import Array, Flags
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import MOST_LOAD_RATIO
from rlctl.safety.profile import Profile


class Beliefs(NamedTuple):
    """What guards may judge by; arrays of shape (n,).

    Attributes:
        complaint: Where something is wrong with the readings as a whole and BE gets the safe allocation.
        slack_ratio: The slack to judge by; NaN where there is none.
        load_ratio: The load to judge by; NaN where there is none.
    """

    complaint: Flags
    slack_ratio: Array
    load_ratio: Array


def form_beliefs(readings: Readings, profile: Profile) -> Beliefs:
    """What may be believed: good news from sound readings only, bad news from any number at all."""
    # A host's tail, oldest request and load come together, of one age, or not at all; its LC always lives.
    came, age = ~readings.lost, readings.age_seconds
    fresh = came & (age >= 0.0) & (age <= profile.max_age_seconds)
    target, tail, oldest = readings.target_seconds, readings.tail_latency_seconds, readings.oldest_request_seconds
    tail_sound = (tail > 0.0) & (tail < np.inf) & (readings.samples >= profile.min_samples)
    oldest_sound = (oldest >= 0.0) & (oldest < np.inf)
    latency_sound = fresh & (target > 0.0) & (target < np.inf) & tail_sound & oldest_sound
    slack = (target - readings.latency_seconds) / target
    slack_counts = came & (target > 0.0) & ((slack < 0.0) | ((slack <= 1.0) & latency_sound))
    load = readings.load_ratio
    load_sound = fresh & (load >= 0.0) & (load <= MOST_LOAD_RATIO)
    load_counts = came & ((load > profile.load_suspend_ratio) | load_sound)
    return Beliefs(
        ~(np.isfinite(readings.time_seconds) & latency_sound & load_sound),
        np.where(slack_counts, slack, np.nan),
        np.where(load_counts, load, np.nan),
    )
