"""Live scenarios: which service and which best-effort job a testbed starts on this host, and how the load goes."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from rlctl.envs.host.topology import require_online
from rlctl.envs.testbed.disk.provisioned import MOST_MEGABYTES
from rlctl.envs.testbed.jobs import CONNECTIONS, COPIES, DEPTH
from rlctl.envs.testbed.knee import WINDOW_SECONDS, KneeSection
from rlctl.envs.testbed.network.link import HOST_ADDRESS, LC_PORT, LOOPBACK, LinkConfig
from rlctl.envs.testbed.services import MOST_KEYS, PRELOAD_KEYS, Memcached, Nginx, Postgres
from rlctl.envs.testbed.traces import Trace, shares_from_config
from rlctl.envs.testbed.workloads import LcProgram
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import Strict


def _some_cpus(cpus: tuple[int, ...]) -> tuple[int, ...]:
    if not cpus or len(set(cpus)) < len(cpus) or min(cpus) < 0:
        raise ValueError(f"needs CPUs, each of them once, such as [0, 1]; not {list(cpus)}")
    return cpus


Cpus = Annotated[tuple[int, ...], AfterValidator(_some_cpus)]
"""CPUs that something is confined to."""

BeKind = Literal["cpu", "memory", "mixed", "upload", "sendfile", "write", "copy"]
"""A best-effort job: what stress-ng does, an upload over the link, a bulk writer on the disk.

Of those that move bytes, `upload` and `write` compress them; `sendfile` and `copy` take next to no CPU time."""

START_SECONDS, BORNE_LOADS = 60.0, 3  # about, and so many loads are tried for longer

OVER_LINK, ON_DISK = frozenset({"upload", "sendfile"}), frozenset({"write", "copy"})
"""Of BE's kinds those that move bytes."""

MOST_WORKERS = {**dict.fromkeys(OVER_LINK, CONNECTIONS), "write": DEPTH, "copy": COPIES}
"""Of BE's kinds that divide what is under way among their workers."""


class ScenarioLc(Strict):
    """The latency-critical service that the testbed starts.

    Attributes:
        kind: The server's program.
        cpus: CPUs that it is confined to; nginx has a worker for each, memcached a thread.
        keys: Items that memcached holds, about 170 bytes each; a request reads 100 of them.
    """

    kind: Literal["nginx", "memcached", "postgres"]
    cpus: Cpus = (0,)
    keys: int = Field(PRELOAD_KEYS, ge=100, le=MOST_KEYS)

    def service(self, address: tuple[str, int] | None) -> LcProgram:
        """The service, at this address or at a unix socket."""
        if self.kind == "memcached":
            return Memcached(threads=len(self.cpus), preload_keys=self.keys, address=address)
        return Nginx(workers=len(self.cpus), address=address) if self.kind == "nginx" else Postgres(address=address)


class ScenarioBe(Strict):
    """The best-effort job that the testbed starts.

    Attributes:
        kind: stress-ng's work: computing, streaming through memory, or both; an upload over the scenario's link,
            compressed or as it is; or what writes to its disk, compressed, or copies there.
        workers: Number of its processes.
        cpus: CPUs that it is confined to.
        weight: BE's CPU weight for every manager but `weights`, whose point it is. Equal is how containers are
            deployed.
    """

    kind: BeKind
    workers: int = Field(2, ge=1)
    cpus: Cpus = (0,)
    weight: Weight = Weight.EQUAL


class DiskSection(Strict):
    """A disk that LC and BE write to.

    Attributes:
        megabytes: What both together may write, MB/s.
    """

    megabytes: float = Field(ge=1.0, le=MOST_MEGABYTES)


class ScenarioSlo(Strict):
    """The objective; the largest load that meets it with BE absent is searched before each repeat.

    Attributes:
        target_milliseconds: Tail latency to stay below.
        quantile_percent: The quantile that counts as the tail, one that the load generator reports.
    """

    target_milliseconds: float = Field(gt=0.0)
    quantile_percent: Literal[95, 99] = 95

    @property
    def target_seconds(self) -> float:
        """The target in seconds."""
        return self.target_milliseconds / 1e3

    @property
    def quantile(self) -> float:
        """The quantile as a ratio."""
        return self.quantile_percent / 100.0


class LiveScenario(Strict):
    """A scenario that runs on this very machine (`plant: host`).

    Attributes:
        name: As `rlctl scenarios` lists it.
        description: What it shows, in one line.
        plant: `host` makes it a live one.
        duration_seconds: Length of one run.
        tick_seconds: Control period: one decision per tick.
        link: What is provisioned between LC and client; without it they talk over a unix socket.
        disk: What is provisioned for LC and BE to write to.
        source: Who tells the policy of latency and load: the load generator, or the kernel (`kind: tcp`), and then the
            maximum load is learned. Where it is given the LC has a TCP port in place of a unix socket. Runs are judged
            by the generator's figures in any case.
        fast_guard: Who has a shield has the guard between the ticks too, as `rlctl serve` has it.
        load: Arguments of a trace of `rlctl.envs.testbed.traces`, with rates as shares of the LC's maximum load.
        core_cpus: How many CPUs here stand for one core of the machine that a manager was published for. The thesis'
            host has 36 cores, so on a single shared CPU a "core" is 1/36 of it. Managers whose step is a share of the
            host need no such scaling.
        time_scale: Divides every published period, so that minutes of a paper fit a run of a minute.
        managers: Further constructor options by manager name.
    """

    name: str
    description: str
    plant: Literal["host"]
    lc: ScenarioLc
    be: ScenarioBe
    slo: ScenarioSlo
    knee: KneeSection
    link: LinkConfig | None = None
    disk: DiskSection | None = None
    source: Literal["generator", "tcp"] | None = None
    fast_guard: bool = False
    load: dict[str, Any]
    duration_seconds: float = Field(60.0, gt=0.0)
    tick_seconds: float = Field(1.0, gt=0.0)
    time_scale: float = Field(15.0, gt=0.0)
    core_cpus: float = Field(1.0, gt=0.0)
    managers: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("load")
    @classmethod
    def _is_a_trace(cls, load: dict[str, Any]) -> dict[str, Any]:
        shares_from_config(load)  # here, for its line
        return load

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.be.kind in OVER_LINK and self.link is None:
            raise ValueError("an upload needs a link: {rates: [[0, 300]]} is one of 300 Mbit/s")
        if self.be.kind in ON_DISK and self.disk is None:
            raise ValueError("a writer needs a disk: {megabytes: 30} is one of 30 MB/s")
        if self.be.kind == "mixed" and self.be.workers < 2:
            raise ValueError("be.workers: mixed takes 2 at least")
        if self.be.workers > (most := MOST_WORKERS.get(self.be.kind, self.be.workers)):
            raise ValueError(f"be.workers: {self.be.kind} takes {most} at most")
        _ = self.trace  # now: all runs have the load that was read here, wherever they are made
        if self.lc.kind != "memcached" and "keys" in self.lc.model_fields_set:
            raise ValueError(f"keys are what memcached holds; {self.lc.kind} has none")
        if self.lc.kind == "postgres" and self.link is not None:
            raise ValueError("postgres is served over a unix socket: leave out the link")
        return self

    def service(self) -> LcProgram:
        """The LC, not started: with a link or a source it has a TCP port, else a unix socket."""
        own = None if self.source is None else (LOOPBACK, LC_PORT)
        return self.lc.service(own if self.link is None else (HOST_ADDRESS, LC_PORT))

    @property
    def start_seconds(self) -> float:
        """About what it takes to start the testbed, and to search the LC's maximum load."""
        return START_SECONDS + BORNE_LOADS * self.knee.borne_windows * WINDOW_SECONDS

    def require_online(self) -> None:
        """Check that the CPUs are on this host; ConfigError: one is not."""
        for field, cpus in (("lc.cpus", self.lc.cpus), ("be.cpus", self.be.cpus)):
            require_online(field, cpus)

    @property
    def provisioned(self) -> tuple[str, float] | None:
        """What LC and BE share behind the CPU, and its least bytes a second; None where it is nothing."""
        if self.be.kind in OVER_LINK and self.link is not None:
            return "link", min(rate for _, rate in self.link.rates) * 1e6 / 8
        if self.be.kind in ON_DISK and self.disk is not None:
            return "disk", self.disk.megabytes * 1e6
        return None

    @cached_property
    def trace(self) -> Trace:
        """The load over time, as a share of the LC's maximum."""
        return shares_from_config(self.load)
