"""Sections of the serve configuration of one concern each: fallback, applications, resources, metrics, operators."""

from __future__ import annotations

import datetime
import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlctl.agents.served.circuit_breaker import FailureBudget
from rlctl.config.fields import Described
from rlctl.envs.host.apps.population import PARENT, PERIOD_SECONDS
from rlctl.envs.host.apps.registry import DIRECTORY
from rlctl.envs.host.discovery import GroupPath
from rlctl.envs.yaml_edge import Name


class FallbackSection(Described, FailureBudget):
    """Behind a learned policy or a class of your own: a heuristic, and behind that the safe allocation.

    It decides when a policy that runs fails. A bundle that is refused at the start ends that start, unless the file
    has this section: then the heuristic decides in its place.

    The default heuristic is that of `policy`: one control law to know. `rlctl bench` compares it with the others; it
    holds about as many windows as Heracles, with more BE.

    Attributes:
        name: The heuristic, from `rlctl managers`.
        options: Its constructor options.
    """

    name: Name = "prm-hybrid-tuned"
    options: dict[str, Any] = Field(default_factory=dict)


DISCOVERED = "discovered"
"""As `platform`: the one that `rlctl partition apply` finds by itself."""


class ApplicationsSection(Described):
    """BE is one group, and the applications below it share its budget.

    Attributes:
        group: BE's group, made when it is not there; with a platform it is the managed device's, and not set here.
        platform: A platform whose partitions stand: its clusters hold the applications. See `rlctl partition`.
        directory: Holds the registrations of `rlctl app`.
        period_seconds: They are placed anew at least so often.
        leftover: What the allocator leaves of the budget goes to those placed (`share`), or to nobody (`idle`).
    """

    group: GroupPath = f"/{PARENT}"
    platform: Name | None = None
    directory: Path = DIRECTORY
    period_seconds: float = Field(default=PERIOD_SECONDS, ge=0.1, le=3600.0)
    leftover: Literal["share", "idle"] = "share"

    @property
    def platform_source(self) -> str | None:
        """The platform's name or file; None is the one that `rlctl partition apply` finds by itself."""
        return None if self.platform == DISCOVERED else self.platform

    @field_validator("group")
    @classmethod
    def _one_group(cls, group: str) -> str:
        if any(letter in group for letter in "*?["):
            raise ValueError(f"{group!r} is not a group below the root; write it as in /proc/PID/cgroup")
        return group


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

    @model_validator(mode="after")
    def _high_before_max(self) -> Self:
        high, most = self.be_memory_high_bytes, self.be_memory_max_bytes
        if high is not None and most is not None and high > most:
            raise ValueError("'be_memory_high_bytes' is above 'be_memory_max_bytes': BE would be killed, not slowed")
        return self


class InnerGuardSection(Described):
    """The guard between two ticks: at the first sign that an LC suffers it holds BE, until the next tick decides anew.

    Signs are late requests, an old outstanding request, a new window above the target, and waiting for CPUs (PSI), as
    far as latency source and kernel tell of them. The log says at the start which there are. What another program
    writes to BE meanwhile is answered at once as well.

    Attributes:
        enabled: Without it nothing happens between two ticks.
        most_false_alarms: Of each sign of an LC in an hour: alarms after whose period the target turns out to be met. A
            sign that had as many is not heeded until one of them is more than an hour ago.
    """

    enabled: bool = True
    most_false_alarms: int = Field(default=12, ge=1, le=100_000)


_ADDRESS = re.compile(r"(?P<host>[0-9.]+|\[[0-9a-fA-F:.]+\]|localhost):(?P<port>[0-9]{1,5})")


class MetricsSection(Described):
    """The Prometheus endpoint; without this section nothing listens for scrapers.

    Attributes:
        listen: IP address and port, with brackets for IPv6: `[::1]:9842`. Anything but loopback needs all of what
            follows.
        tls_certificate: PEM file with the certificate and its chain.
        tls_key: PEM file with the certificate's key, without a passphrase; not readable by everybody.
        bearer_token_file: One line that a scraper has to send as `Authorization: Bearer ...` to read /metrics; not
            readable by everybody. The files are read again when they have changed.
    """

    listen: str = "127.0.0.1:9842"
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    bearer_token_file: Path | None = None

    @field_validator("listen")
    @classmethod
    def _listenable(cls, listen: str) -> str:
        parts = _ADDRESS.fullmatch(listen)
        if parts is None or not 0 <= int(parts["port"]) <= 65535:
            raise ValueError(f"{listen!r} is not an IP address and port, such as 127.0.0.1:9842 or [::1]:9842")
        if parts["host"] != "localhost":
            ipaddress.ip_address(parts["host"].strip("[]"))
        return listen

    @model_validator(mode="after")
    def _closed_to_strangers(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("'tls_certificate' and 'tls_key' go together")
        if not self.loopback and (self.tls_certificate is None or self.bearer_token_file is None):
            raise ValueError(
                f"{self.listen} is not loopback: it needs 'tls_certificate', 'tls_key' and 'bearer_token_file'"
            )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """IP address and port; port 0 is any free one."""
        host, _, port = self.listen.rpartition(":")
        return "127.0.0.1" if host == "localhost" else host.strip("[]"), int(port)

    @property
    def loopback(self) -> bool:
        """True when only this host can reach it."""
        return ipaddress.ip_address(self.address[0]).is_loopback


class LimitsSection(Described):
    """What rlctl itself may cost; a service manager bounds it from outside too (configs/deploy/rlctl.slice).

    Attributes:
        memory_bytes: The kernel refuses memory beyond this, for rlctl and each of its children (RLIMIT_DATA).
        warn_resident_bytes: Memory in use (RSS) from which the log has a warning.
        warn_cpu_ratio: CPU time per second, over a minute, from which the log has a warning.
    """

    memory_bytes: int = Field(default=512 << 20, ge=128 << 20)
    warn_resident_bytes: int = Field(default=128 << 20, ge=16 << 20)
    warn_cpu_ratio: float = Field(default=0.1, gt=0.0, le=1024.0)


DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60


def _time(value: object) -> str:
    """`HH:MM`; YAML itself reads `10:30` without quotes as 630. Below 60 it was no such time: `8` is no 8 o'clock."""
    text = f"{value // 60:02d}:{value % 60:02d}" if isinstance(value, int) and value >= 60 else value
    if not isinstance(text, str) or not _TIME.fullmatch(text) or _minutes(text) > DAY_MINUTES:
        raise ValueError(f"{value!r} is not a time of day, such as '03:30'")
    return text


def _minutes(time: str) -> int:
    hours, minutes = map(int, time.split(":"))
    return 60 * hours + minutes


def _days(value: object) -> tuple[str, ...]:
    """`mon-fri`, `sat,sun`, or a list of such."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise ValueError(f"{value!r} is not a list of days, such as mon-fri")
    days: list[int] = []
    for part in parts:
        first, _, last = str(part).strip().lower().partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ValueError(f"{part!r} is not a day; they are {', '.join(DAYS)}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        days += [day % 7 for day in range(begin, end + 1 + 7 * (end < begin))]
    return tuple(DAYS[day] for day in sorted(set(days)))


_TIME = re.compile(r"\d{1,2}:[0-5]\d")
TimeOfDay = Annotated[str, BeforeValidator(_time, json_schema_input_type=str | int)]
Days = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_days, json_schema_input_type=str | list[str])]


class ControlSection(Described):
    """Who may pause and limit BE, at `control.sock` in the state directory: root, and who runs the service.

    Attributes:
        group: Members of this group may, too.
    """

    group: Name | None = None


class ScheduleEntry(Described):
    """A time at which BE may have no more than so much, whatever the policy says; in local time.

    That is the service's `/etc/localtime`, of which a container has its own; the log says at the start which it is.

    Attributes:
        name: For logs, `backup`.
        days: `mon-fri`, `sat,sun`; by default all. A time that goes on after midnight belongs to the day it began on.
        begins: Time of day, '22:00'.
        ends: Time of day; one that is not after `begins` is on the next day.
        be_cpus: The largest quota in CPUs; 0 is none: BE at the safe allocation.
    """

    name: Name
    days: Days = DAYS
    begins: TimeOfDay
    ends: TimeOfDay
    be_cpus: float = Field(ge=0.0)

    def covers(self, moment: datetime.datetime) -> bool:
        """Whether it holds at this local time."""
        minute, today, yesterday = 60 * moment.hour + moment.minute, DAYS[moment.weekday()], DAYS[moment.weekday() - 1]
        begins, ends = _minutes(self.begins), _minutes(self.ends)
        if begins < ends:
            return today in self.days and begins <= minute < ends
        return (today in self.days and minute >= begins) or (yesterday in self.days and minute < ends)
