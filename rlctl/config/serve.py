"""The serve configuration: what a YAML file may say, and how what is in effect is shown."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from rlctl.config.fields import Cpus, Described, QuantilePercent
from rlctl.config.sections import (
    ApplicationsSection,
    ControlSection,
    FallbackSection,
    InnerGuardSection,
    LimitsSection,
    MetricsSection,
    ResourcesSection,
    ScheduleEntry,
)
from rlctl.config.sources import Latency, TcpLatency, Workload
from rlctl.envs.errors import ConfigError
from rlctl.envs.host.cgroup.ownership import Foreign
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import NO_TARGET_SECONDS
from rlctl.envs.workload import SLO
from rlctl.envs.yaml_edge import Name, load_model, load_yaml
from rlctl.safety.profile import DEFAULT

MOST_LCS = 16

_EXPORTER = "use `kind: prometheus` with an exporter, or `kind: jsonl` with a log of requests"

REMOVED = {
    "approve": "leave it out: review changes in the repository that this file comes from",
    "resources.node_power": "leave it out: `package_watts` is read by itself; ipmi_exporter has the whole machine",
    "be.applications.socket": "leave it out: applications read their mode from the file RLCTL_MODE_FILE",
    "lc.latency.pattern": "use `kind: text`, which has a pattern",
    "lc.latency.kind: cyclictest": "use `kind: text` with the pattern in docs/measured/realtime.md",
    "lc.latency.kind: redis": _EXPORTER,
    "lc.latency.kind: otlp": f"{_EXPORTER}; an OpenTelemetry collector exports to Prometheus",
}
"""What to use in place of what was removed, by the key without list indices; `: value` where only that was."""

TargetMilliseconds = Annotated[float, Field(gt=0.0, le=3.6e6)] | Literal["auto"]
MaxLoadRps = Annotated[float, Field(gt=0.0)] | Literal["auto"]


class SloSection(Described):
    """The objective of a latency-critical workload.

    Attributes:
        target_milliseconds: Tail latency to stay below; `auto` proposes one from the LC's own tail with BE held.
        quantile_percent: The quantile of latency that counts as the tail.
        max_load_rps: Load that counts as 1.0: the largest that meets the target without BE; by default it is learned.
        error_budget_percent: Windows of a day that may miss the target. When they have, or do so six times as fast for
            an hour, BE is held at its minimum; by default there is no such bound.
    """

    target_milliseconds: TargetMilliseconds
    quantile_percent: QuantilePercent = 95.0
    max_load_rps: MaxLoadRps = "auto"
    error_budget_percent: float | None = Field(default=None, gt=0.0, le=100.0)

    @property
    def slo(self) -> SLO:
        """The same in seconds and ratios; a maximum load that is to be learned is infinite, so is nearly the target."""
        auto = isinstance(self.target_milliseconds, str)
        target_seconds = NO_TARGET_SECONDS if auto else float(self.target_milliseconds) / 1e3
        most = math.inf if isinstance(self.max_load_rps, str) else self.max_load_rps
        return SLO(target_seconds, self.quantile_percent / 100.0, most)


class LcSection(Described):
    """A latency-critical workload (LC).

    Attributes:
        name: For ticks and logs, where there are several.
        workload: How it is found.
        slo: Its service-level objective.
        latency: Where its tail latency and load are read; by default from the kernel, on its TCP connections.
        cpus: CPUs that it runs on, by default its cpuset's.
    """

    name: Name | None = None
    workload: Workload
    slo: SloSection
    latency: Latency = TcpLatency(kind="tcp")
    cpus: Cpus | None = None


Lc = Annotated[
    Annotated[LcSection, Tag("one")]
    | Annotated[tuple[LcSection, ...], Field(min_length=1, max_length=MOST_LCS), Tag("several")],
    Discriminator(lambda lc: "several" if isinstance(lc, (list, tuple)) else "one"),
]


BeWeight = Literal["minimum", "idle", "leave"]
BeHold = Literal["freeze", "quota"]


class StarvedSection(Described):
    """When BE has had so little for so long that it should run elsewhere, and who is told beside the log.

    BE had what it may use. Where PSI says that it waited for a CPU for half of the time or more, it had the less of
    that and of what it used. Times in which a pause, a limit or the schedule holds it, or in which it has no process,
    are left out.

    Attributes:
        below_ratio: Share of BE's CPUs, as a mean over that time: less is too little.
        after_seconds: Length of that time.
        command: A program with its arguments, run when BE starves; RLCTL_SHARE and RLCTL_REASON in its environment say
            the share of its CPUs that BE had and what held it most. Once more, with RLCTL_FED=1 (else 0), when BE is
            fed again: then nothing is to be moved. It has 60 s.
        again_seconds: While BE starves it is run again after so long.
    """

    below_ratio: float = Field(default=0.05, ge=0.0, le=1.0)
    after_seconds: float = Field(default=900.0, ge=1.0, le=86_400.0)
    command: tuple[str, ...] = ()
    again_seconds: float = Field(default=900.0, ge=1.0, le=86_400.0)


class BeSection(Described):
    """The best-effort work (BE), in one group or several.

    Attributes:
        workloads: Each is held to the same allocation; together they are BE. With `applications` it is their group.
        applications: BE is one group, whose child groups share what it has.
        cpus: CPUs that BE may be given, safest first; by default all, those that the LC does not use first.
        quota_levels: Steps of the quota that learned policies move on.
        min_quota_cpus: The smallest quota ever written.
        reins: What may move BE's level; `link` and `disk` are taken where the LC waits for them, and are free else.
        link: The interface that the LC's answers take; `auto` finds it by their route, `none` leaves the rein out.
        hold: The tightest hold of BE. `freeze` suspends it. `quota` leaves it `min_quota_cpus` on one CPU, for BE that
            a liveness probe or the like restarts when it does not answer.
        weight: BE's CPU weight under every policy, put back at the end: the kernel's `minimum`; `idle`, its class for
            what runs when nobody else wants the CPU, where the kernel has it; or `leave` it as it is. A group that has
            less keeps it.
        starved: When BE has had so little for so long that it should run elsewhere.
    """

    workloads: Annotated[tuple[Workload, ...], Field(min_length=1)] | None = None
    applications: ApplicationsSection | None = None
    cpus: Cpus | None = None
    quota_levels: int = Field(default=20, ge=1, le=1000)
    min_quota_cpus: float = Field(default=0.01, ge=0.001, le=1.0)
    reins: tuple[Rein, ...] = tuple(Rein)
    link: str = Field(default="auto", min_length=1, max_length=15, pattern=r"^[^\s/]+$")
    hold: BeHold = "freeze"
    weight: BeWeight = "minimum"
    starved: StarvedSection = StarvedSection()

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if bool(self.workloads) == (self.applications is not None):
            raise ValueError("needs either 'workloads' or 'applications': the latter names BE's group itself")
        if Rein.CPU not in self.reins:
            raise ValueError("'reins' lacks cpu, which every host has and freezes BE")
        return self


class PolicySection(Described):
    """The policy that decides what BE may have.

    Attributes:
        name: From `rlctl managers`, or a class of your own, `FILE.py:CLASS`, in a file that no other user may write.
        options: Constructor options of that manager.
        threshold_model: PRM's model from `rlctl fit-prm`.
        trusted_keys: Files with public Ed25519 keys, as `ssh-keygen -t ed25519` makes them; a learned policy is then
            taken only if one of them signed its bundle, see `rlctl sign`.
    """

    name: Name = "ppo"
    options: dict[str, Any] = Field(default_factory=dict)
    threshold_model: Path | None = None
    trusted_keys: tuple[Path, ...] = ()


class LogSection(Described):
    """The log of every tick.

    Attributes:
        directory: Holds ticks.jsonl and, rotated, ticks.jsonl.1 and so on.
        rotate_bytes: Size at which it is rotated.
        keep: Rotated files kept.
    """

    directory: Path = Path("/var/log/rlctl")
    rotate_bytes: int = Field(default=16 << 20, ge=1 << 16)
    keep: int = Field(default=4, ge=1, le=1000)


class OwnershipSection(Described):
    """What another program's write to a knob of BE is answered with; a freer value is corrected at once in any case.

    Attributes:
        foreign: A tighter value is overwritten with back-off (`reassert`), left until the other program changes it
            (`yield`), or left and said as an error (`alarm`).
        most_backoff_seconds: The longest that `reassert` leaves a tighter value alone.
    """

    foreign: Foreign = Foreign.REASSERT
    most_backoff_seconds: float = Field(default=60.0, ge=1.0, le=86_400.0)


class WatchdogSection(Described):
    """The process that takes BE to the safe allocation when the controller dies or hangs.

    Attributes:
        enabled: Without it a controller that dies leaves BE as it is, until `rlctl restore`.
        grace_seconds: How late a tick may be completed before the controller counts as hung. The default is above the
            time-out of the latency sensors, and at a 1-s tick lets BE run for less than 2 s.
        restore_after_seconds: How long BE then stays at the safe allocation and a successor is waited for, before the
            controller is ended for good. The time that a start takes does not count. After a crash the originals are
            then put back; after a hang BE stays at the safe allocation for a successor, or until `rlctl restore`.
    """

    enabled: bool = True
    grace_seconds: float = Field(default=0.7, ge=0.1, le=60.0)
    restore_after_seconds: float = Field(default=30.0, ge=1.0, le=86400.0)

    def lease_seconds(self, tick_seconds: float) -> float:
        """How long a renewal lasts, given the control period."""
        return tick_seconds + self.grace_seconds


class ServeConfig(Described):
    """The whole configuration of `rlctl serve`.

    Attributes:
        tick_seconds: Control period: one decision per tick.
        lc: The latency-critical workload, or a list of several; the shield then holds BE to the worst off of them.
        be: The best-effort work (BE).
        policy: The policy that decides what BE may have.
        fallback: The heuristic that decides when a learned policy does not.
        shield: A shipped safety profile, or the path of one; behind a `+` a guard of your own, `measured+FILE.py:CLASS`
            or an entry point in `rlctl.guards`.
        quota_period_milliseconds: Period of the CPU quota; the longer, the longer the bursts that the LC meets. Each
            write gives BE a whole one at once, so that a long one lets it have more than its verdict.
        state_directory: Holds the journal of original values, from which `rlctl restore` works.
        ownership: What another program's write to BE is answered with.
        inner_guard: What may hold BE between two ticks.
        watchdog: The process that looks after BE when this one dies.
        log: The log of every tick.
        metrics: The Prometheus endpoint; None listens nowhere.
        limits: What rlctl itself may cost.
        perf: Read CPI and other hardware counters.
        resources: What LC and BE get of memory, disks, cache and memory bandwidth.
        control: Who may pause and limit BE while it runs.
        schedule: Times at which BE may have no more than so much.
    """

    REMOVED: ClassVar[dict[str, str]] = REMOVED

    tick_seconds: float = Field(default=1.0, ge=0.05, le=60.0)
    lc: Lc
    be: BeSection
    policy: PolicySection = PolicySection()
    fallback: FallbackSection = FallbackSection()
    shield: Name = DEFAULT
    quota_period_milliseconds: float = Field(default=10.0, ge=1.0, le=100.0)
    state_directory: Path = Path("/var/lib/rlctl")
    ownership: OwnershipSection = OwnershipSection()
    inner_guard: InnerGuardSection = InnerGuardSection()
    watchdog: WatchdogSection = WatchdogSection()
    log: LogSection = LogSection()
    metrics: MetricsSection | None = None
    limits: LimitsSection = LimitsSection()
    perf: bool = False
    resources: ResourcesSection = ResourcesSection()
    control: ControlSection = ControlSection()
    schedule: tuple[ScheduleEntry, ...] = ()

    @model_validator(mode="after")
    def _apart(self) -> ServeConfig:
        if any(lc.workload in (self.be.workloads or ()) for lc in self.lcs.values()):
            raise ValueError("lc.workload is one of be.workloads too; name the best-effort work only")
        if isinstance(self.lc, tuple) and len(self.lcs) < len(self.lc):
            raise ValueError("two LCs have one name; give each its own")
        if len({entry.name for entry in self.schedule}) < len(self.schedule):
            raise ValueError("two entries of schedule have one name; give each its own")
        return self

    @property
    def lcs(self) -> dict[str, LcSection]:
        """Every LC by its name: `lc` for one, `lc1` and so on for several without names."""
        if isinstance(self.lc, LcSection):
            return {self.lc.name or "lc": self.lc}
        return {one.name or f"lc{number}": one for number, one in enumerate(self.lc, start=1)}

    @property
    def named_workloads(self) -> dict[str, object]:
        """Who LC and BE are, as plain data; without what every start has anew."""
        anew = {"pid"}
        be = self.be.applications or self.be.workloads
        return {
            "lc": {name: lc.workload.model_dump(mode="json", exclude=anew) for name, lc in self.lcs.items()},
            "be": [
                one.model_dump(mode="json", exclude=anew) for one in (be if isinstance(be, tuple) else (be,)) if one
            ],
        }


def load_config(path: Path) -> ServeConfig:
    """Read a serve configuration; what is wrong with it is told with file and line."""
    return load_model(ServeConfig, path)


@contextlib.contextmanager
def locate_errors(path: Path | None, *keys: str) -> Iterator[None]:
    """Give a ConfigError that is raised within the file, the line and the key, unless it names a file of its own.

    So what is wrong with a key (`keys` is its path from the top) is told as what is found while loading.
    """
    try:
        yield
    except ConfigError as error:
        if error.path is not None or path is None:
            raise
        _, lines = load_yaml(path)
        known = next((keys[:end] for end in range(len(keys), 0, -1) if keys[:end] in lines), None)
        message = f"{'.'.join(keys)}: {error}"
        raise type(error)(message, path, None if known is None else lines[known]) from error


_ON_DEFAULT = {"fallback": "; a bundle that is refused at the start ends it all the same"}


def describe(config: ServeConfig) -> str:
    """The configuration in effect as YAML; what the file did not say is marked `# default`."""
    return "\n".join(_describe_section(config, "")) + "\n"


def schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | ServeConfig.model_json_schema()


def _describe_section(model: BaseModel, indent: str) -> Iterator[str]:
    plain = model.model_dump(mode="json")
    for name in type(model).model_fields:
        value = getattr(model, name)
        mark = "" if name in model.model_fields_set else "  # default"
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:{mark}{_ON_DEFAULT.get(name, '') if mark else ''}"
            yield from _describe_section(value, indent + "  ")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield f"{indent}{name}:{mark}"
            for item in value:
                first, *rest = _describe_section(item, "")
                yield f"{indent}  - {first}"
                yield from (f"{indent}    {line}" for line in rest)
        else:
            yield f"{indent}{name}: {json.dumps(plain[name])}{mark}"
