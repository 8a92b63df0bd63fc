"""What the shield of many hosts reads, and which of its readings may be believed: `rlctl.safety.trust` in arrays.

`Trust` there has the rules with their reasons. `tests/safety/many/test_shield.py` holds both equal to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlctl.envs.arrays import Array, Flags
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import MOST_LOAD_RATIO
from rlctl.safety.profile import Profile


class Column(NamedTuple):
    """One sensor on n hosts; arrays of shape (n,), or of any shape that broadcasts to it.

    Attributes:
        value: In the sensor's unit; any number where the reading is missing.
        age_seconds: Time since the end of the interval that the reading describes.
        lost: Where it is missing and that is a reason to complain; a sensor that was never there is not lost.
    """

    value: Array
    age_seconds: Array
    missing: Flags
    lost: Flags

    def sound(self, max_age_seconds: float) -> Flags:
        """Where there is a finite value, not negative and not too old."""
        value, age = self.value, self.age_seconds
        return ~self.missing & (value >= 0.0) & (value < np.inf) & (age >= 0.0) & (age <= max_age_seconds)


_ALIVE = Column(np.array(1.0), np.array(0.0), np.array(False), np.array(False))


@dataclass(frozen=True, slots=True, eq=False)
class GuardReadings:
    """One tick's readings of n hosts, as far as guards use them; never changed once built.

    Simulated hosts can say less than this holds; with sensors of their own, any telemetry can be put into arrays, as
    the tests do that hold the two shields together.

    Attributes:
        time_seconds: The hosts' clock; a scalar when they share one.
        tail: Tail latency in seconds.
        samples: Completed requests behind the tail latency.
        oldest: Age of the oldest outstanding request in seconds.
        load: Offered load as a share of the LC's maximum.
        alive: 1.0 where the LC has a running process.
    """

    time_seconds: Array
    target_seconds: Array
    tail: Column
    samples: Array
    oldest: Column
    load: Column
    alive: Column

    @classmethod
    def of_vector(cls, readings: Readings) -> GuardReadings:
        """Readings of simulated hosts, which report all of the LC's side or none of it."""
        r, age, lost = readings, readings.age_seconds, readings.lost
        return cls(
            r.time_seconds,
            r.target_seconds,
            tail=Column(r.tail_latency_seconds, age, lost, lost),
            samples=r.samples,
            oldest=Column(r.oldest_request_seconds, age, lost, np.array(False)),  # without data it is no complaint
            load=Column(r.load_ratio, age, lost, lost),
            alive=_ALIVE,
        )


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


def believed(readings: GuardReadings, profile: Profile) -> Beliefs:
    """What may be believed: good news from sound readings only, bad news from any number at all."""
    latency, load = _latency_is_sound(readings, profile), readings.load
    load_sound = load.sound(profile.max_age_seconds) & (load.value <= MOST_LOAD_RATIO)
    alive = readings.alive
    lives = np.where(alive.missing, ~alive.lost, alive.sound(profile.max_age_seconds) & (alive.value >= 0.5))
    slack = _slack_ratio(readings)
    slack_counts = (slack < 0.0) | ((slack <= 1.0) & latency)
    load_counts = ~load.missing & ((load.value > profile.load_suspend_ratio) | load_sound)
    return Beliefs(
        ~(np.isfinite(readings.time_seconds) & lives & latency & load_sound),
        np.where(slack_counts, slack, np.nan),
        np.where(load_counts, load.value, np.nan),
    )


def _latency_is_sound(readings: GuardReadings, profile: Profile) -> Flags:
    target, tail, oldest = readings.target_seconds, readings.tail, readings.oldest
    tail_sound = tail.sound(profile.max_age_seconds) & (tail.value > 0.0) & (readings.samples >= profile.min_samples)
    oldest_sound = np.where(oldest.missing, ~oldest.lost, oldest.sound(profile.max_age_seconds))
    return (target > 0.0) & (target < np.inf) & tail_sound & oldest_sound


def _slack_ratio(readings: GuardReadings) -> Array:
    """As `Telemetry.slack_ratio`: by the tail, or by the oldest request where that says more; NaN where neither."""
    target, tail, oldest = readings.target_seconds, readings.tail, readings.oldest
    # Without a tail the oldest request counts once it is beyond the target; a missing one never does.
    least = np.where(tail.missing, target, tail.value)
    known = np.where(tail.missing, np.nan, tail.value)
    latency = np.where(~oldest.missing & (oldest.value > least), oldest.value, known)
    return np.where(target > 0.0, (target - latency) / target, np.nan)
