"""The readings of many hosts in arrays: the twin of `Telemetry` for simulated fleets and vector environments."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from rlctl.envs.arrays import Array, Flags
from rlctl.envs.rows import Rows


class Readings(NamedTuple):
    """What the sensors of n hosts measured, arrays of shape (n,); names and units as in `Telemetry`.

    Attributes:
        time_seconds: Each host's own clock, which starts with its episode.
        lost: True where the tail latency, the oldest request's age and the load are missing; their numbers are then
            the last that arrived.
        age_seconds: Time since the end of the period that these three describe.
        samples: Completed requests behind the tail latency.
        true_latency_seconds: The latency as a sensor that is neither late nor silent would measure it; no policy
            sees it.
        rein: What moved BE's level, its place among `rlctl.envs.reins.REINS`.
        be_used_ratio: BE's use of that level as a share of everything; of the CPUs `be_cpus` says it.
        fell_ratio: By how much less the link is taken to carry; what was missed before was no level's doing then.
    """

    time_seconds: Array
    target_seconds: Array
    tail_latency_seconds: Array
    oldest_request_seconds: Array
    load_ratio: Array
    samples: Array
    lost: Flags
    age_seconds: Array
    cpi: Array
    lc_cpu_seconds_per_request: Array
    lc_cpus: Array
    be_cpus: Array
    host_cpus: Array
    lc_pressure_ratio: Array
    lc_run_delay_ratio: Array
    be_work_rate: Array
    true_latency_seconds: Array
    rein: Array
    be_used_ratio: Array
    fell_ratio: Array

    @property
    def latency_seconds(self) -> Array:
        """The latency that counts, as in `Telemetry`; meaningless where `lost`."""
        oldest, tail = self.oldest_request_seconds, self.tail_latency_seconds
        return np.where(oldest > tail, oldest, tail)

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """The columns of rows of READING, without a copy."""
        return cls(*(rows[name] for name in Readings._fields))

    @property
    def rows(self) -> Rows:
        """The same as rows of READING; those whose columns these are, if they are."""
        whole = self.lost.base
        if whole is not None and whole.dtype == READING and all(column.base is whole for column in self):
            return whole
        rows = np.empty(len(self.lost), READING)
        for name, column in zip(Readings._fields, self, strict=True):
            rows[name] = column
        return rows


READING = np.dtype([(name, "?" if name == "lost" else "f8") for name in Readings._fields], align=True)
"""As `Readings`, of one host."""
