"""Section `resources` of the serve configuration: what LC and BE get of memory, disks, cache and memory bandwidth."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rlctl.config.fields import Described


class ResctrlSection(Described):
    """Classes of last-level cache and memory bandwidth; without any share they only count what LC and BE use.

    Attributes:
        be_cache_ratio: BE's share of the ways of each last-level cache; the LC gets the others.
        be_bandwidth_percent: BE's share of each socket's memory bandwidth.
        be_bandwidth_megabytes_per_second: The same where resctrl is mounted with mba_MBps, and on AMD.
    """

    be_cache_ratio: float | None = Field(default=None, gt=0.0, lt=1.0)
    be_bandwidth_percent: float | None = Field(default=None, gt=0.0, le=100.0)
    be_bandwidth_megabytes_per_second: float | None = Field(default=None, gt=0.0, le=1e7)

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if self.be_bandwidth_percent is not None and self.be_bandwidth_megabytes_per_second is not None:
            raise ValueError("'be_bandwidth_percent' and 'be_bandwidth_megabytes_per_second' exclude each other")
        return self


class ResourcesSection(Described):
    """Written once at the start, journalled, and put back at the end; what the host lacks is a warning.

    Attributes:
        strict: What the host lacks ends the start instead.
        lc_memory_min_bytes: Memory of each LC that is never reclaimed (cgroup v2).
        lc_memory_low_bytes: Memory of each LC that is reclaimed last (cgroup v2).
        be_memory_high_bytes: Memory from which on each BE group is reclaimed; with cgroup v1 only when the host runs
            short.
        be_memory_max_bytes: The most memory of each BE group; beyond it the kernel ends processes of it.
        be_io_weight: BE's share of disks whose scheduler heeds weights; every group has 100 by default.
        be_disk_read_bytes_per_second: The most that each BE group reads from each disk.
        be_disk_write_bytes_per_second: The most that each BE group writes to each disk; what cgroup v1 writes back
            later is not counted.
        resctrl: Classes of cache and memory bandwidth; None makes none.
        dram_peak_bytes_per_second: What one socket's memory can do; makes shares of what is counted, for guards and
            policies.
        node_power: Ask the machine's power meter or board controller every few seconds.
    """

    strict: bool = False
    lc_memory_min_bytes: int | None = Field(default=None, ge=1 << 20)
    lc_memory_low_bytes: int | None = Field(default=None, ge=1 << 20)
    be_memory_high_bytes: int | None = Field(default=None, ge=1 << 20)
    be_memory_max_bytes: int | None = Field(default=None, ge=1 << 20)
    be_io_weight: int | None = Field(default=None, ge=1, le=10000)
    be_disk_read_bytes_per_second: int | None = Field(default=None, ge=1 << 12)
    be_disk_write_bytes_per_second: int | None = Field(default=None, ge=1 << 12)
    resctrl: ResctrlSection | None = None
    dram_peak_bytes_per_second: float | None = Field(default=None, gt=0.0, le=1e13)
    node_power: bool = False

    @model_validator(mode="after")
    def _high_before_max(self) -> Self:
        high, most = self.be_memory_high_bytes, self.be_memory_max_bytes
        if high is not None and most is not None and high > most:
            raise ValueError("'be_memory_high_bytes' is above 'be_memory_max_bytes': BE would be killed, not slowed")
        return self
