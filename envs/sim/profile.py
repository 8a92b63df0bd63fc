"""What the simulator knows of one kind of host: every constant with its unit, from a YAML file.

`Constants` are the same numbers as arrays, one entry per simulated host. Where a profile gives a range the hosts
differ, as training wants it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rlctl.envs.allocation import Limits
from rlctl.envs.arrays import Array
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.noise import uniforms
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import Strict, load_model, shipped_or_own, validate

# First noise channel of the numbers that pick constants from their ranges.
RANGE_CHANNEL = 1000


class LcConstants(Strict):
    """The latency-critical service and its requests."""

    lc_cpus: float = Field(gt=0.0)
    """CPUs that it may run on."""
    servers: float = Field(1.0, ge=1.0)
    """Servers behind one queue; its CPUs divided by it is the number of separate queues (memcached: one a thread)."""
    service_seconds: float = Field(gt=0.0)
    """CPU time of one request on a busy server."""
    wake_seconds: float = Field(0.0, ge=0.0)
    """CPU time more for a request that finds its server idle: wake-up and a batch of one."""
    service_scv: float = Field(1.0, ge=0.0)
    """Squared coefficient of variation of the service time."""
    arrival_scv: float = Field(1.0, ge=0.0)
    """Squared coefficient of variation of the time between arrivals; 1 is Poisson."""
    imbalance_ratio: float = Field(1.0, ge=1.0)
    """Load of the busiest queues by the mean: connections stay with the thread that took them."""
    base_seconds: float = Field(0.0, ge=0.0)
    """Latency that no load changes: network, client."""
    target_seconds: float = Field(gt=0.0)
    """The SLO's target."""
    quantile_ratio: float = Field(0.95, gt=0.5, lt=1.0)
    """The SLO's quantile; one for all hosts of a batch."""
    max_load_rps: float = Field(gt=0.0)
    """The load that counts as 1.0."""


class BeConstants(Strict):
    """The best-effort work and the CPUs around it."""

    threads: float = Field(gt=0.0)
    """Threads that want to run."""
    own_cpus: float = Field(0.0, ge=0.0)
    """CPUs of BE's order, the first ones, where the LC never runs."""
    shared_cpus: float = Field(0.0, ge=0.0)
    """CPUs of BE's order, after those, where the LC runs too."""
    host_cpus: float = Field(gt=0.0)
    """CPUs that managers take a share of: the length of the CPU order."""
    client_cpus: float = Field(0.0, ge=0.0)
    """CPUs that others (the load's client) take from BE's own ones, whatever the load."""
    client_cpu_seconds: float = Field(0.0, ge=0.0)
    """CPU time more that they take per request."""
    phase_seconds: float = Field(60.0, gt=0.0)
    """Correlation time of BE's demand for cache and memory."""
    phase_sd: float = Field(0.0, ge=0.0, le=5.0)
    """Its standard deviation, by the mean."""
    pause_ratio: float = Field(0.0, ge=0.0, lt=1.0)
    """Share of the time without BE work: between jobs."""
    pause_seconds: float = Field(60.0, gt=0.0)
    """Length of a job and of a pause are multiples of it."""


class SharingConstants(Strict):
    """How the kernel shares a CPU, see `sharing`."""

    minimum_weight_ratio: float = Field(2.0 / 1024.0, gt=0.0)
    """BE's minimum weight by the LC's: cpu.shares 2 against 1024."""
    slice_seconds: float = Field(0.0, ge=0.0)
    """p95 that an equal-weight BE adds at a utilisation of one half of what the LC can get."""
    slice_weight_exponent: float = Field(1.5, ge=0.0)
    """How it falls with BE's share of the CPU."""
    crowd_exponent: float = Field(0.8, ge=0.0)
    """How it grows with rho / (1 - rho)."""
    period_exponent: float = Field(0.3, ge=0.0)
    """How it grows with the quota's period: quota burns in one burst per period."""
    period_seconds: float = Field(0.010, gt=0.0)
    """The quota's period."""
    freeze_seconds: float = Field(0.007, ge=0.0)
    """Until a freeze is done."""


class InterferenceConstants(Strict):
    """What BE costs the LC beyond CPU time: cache, memory bandwidth, SMT siblings, frequency."""

    inflation_per_cpu: float = Field(0.0, ge=0.0)
    """Growth of the LC's service time per busy BE CPU."""
    inflation_per_cpu2: float = Field(0.0, ge=0.0)
    """The same per square of it."""
    be_inflation: float = Field(0.0, ge=0.0)
    """Growth of BE's time per unit of work when the LC keeps all its CPUs busy."""
    cpi: float = Field(1.0, gt=0.0)
    """The LC's cycles per instruction when it is alone and nearly idle."""
    cpi_load_ratio: float = Field(0.0, ge=0.0)
    """Growth of CPI from idle to all its CPUs busy."""
    cpi_interference_ratio: float = Field(1.0, ge=0.0)
    """Growth of CPI by the growth of the service time."""
    cpi_cv: float = Field(0.0, ge=0.0, le=2.0)
    """Noise of CPI."""


class LinkConstants(Strict):
    """A network link or disk with a provisioned rate that LC and BE share, see `link`."""

    link_bytes_per_second: float = Field(gt=0.0)
    """Its full rate."""
    link_lc_bytes: float = Field(ge=0.0)
    """What a request of the LC puts on it."""
    link_batch_ratio: float = Field(1.0, gt=0.0, le=1.0)
    """What is left of that where many wait: a database commits all of those with one write. 1: nothing is saved."""
    link_be_bytes: float = Field(ge=0.0)
    """What a second of BE's CPU time puts on it."""
    link_be_cv: float = Field(0.0, ge=0.0, le=2.0)
    """How that varies from window to window: with the data, and with the CPU's speed."""
    link_lc_ratio: float = Field(1.0, gt=0.0, le=1.0)
    """What the LC can have of it however much BE sends: its part of the flows. With 1 it gets all that it asks for."""
    link_wait_ratio: float = Field(0.0, ge=0.0, le=1.0)
    """Share of its CPU time that BE does not use where the link takes no more: 0 where it polls, 1 where it sleeps."""
    link_burst_bytes: float = Field(gt=0.0)
    """Mean length of what either writes at once."""
    link_bucket_bytes: float = Field(0.0, ge=0.0)
    """Burst that passes without delay: the token bucket's depth."""
    link_queue_bytes: float = Field(gt=0.0)
    """A full queue: the bucket's own limit, and what the senders' TCP adds when packets are lost."""
    link_step_ratio: float = Field(1.0, gt=0.0, le=4.0)
    """Rate in every second stretch of time, by the full rate; 1 is a constant rate."""
    link_step_seconds: float = Field(60.0, gt=0.0)
    """Length of such a stretch."""
    link_base_ratio: float = Field(1.0, gt=0.0, le=1.0)
    """Rate that is left when the credits have run out, by that of the stretch; they refill at it by the full."""
    link_credit_bytes: float = Field(0.0, ge=0.0)
    """Credits that a full account holds, as at the start: bytes that may flow beyond the base rate."""


# Of a host without such a resource: whatever flows, the queue is empty. No file can say so, for infinity is refused.
NO_LINK = LinkConstants.model_construct(
    link_bytes_per_second=math.inf, link_lc_bytes=0.0, link_be_bytes=0.0, link_burst_bytes=1.0, link_queue_bytes=1.0
)


class RestartConstants(Strict):
    """The LC is started anew in mid-run, as another version: from then on its requests cost something else."""

    restart_seconds: float = Field(0.0, ge=0.0)
    """When, since the start of the run."""
    restart_ratio: float = Field(1.0, gt=0.0)
    """CPU time of a request from then on, by that before."""


NO_RESTART = RestartConstants.model_validate({})


class ReinConstants(Strict):
    """What else than the CPUs may move BE's level, once the LC missed its target behind it; see `reins`."""

    rein: float = Field(0.0, ge=0.0, le=2.0)
    """0 nothing, 1 the link, 2 the disk; whichever it is has the constants of `link`."""
    most_seen_ratio: float = Field(1.0, ge=1.0)
    """What is sent into a full link, by what that carries: what is dropped and sent again counts, too."""


NO_REIN = ReinConstants.model_validate({})
_OPTIONAL = {"restart": NO_RESTART, "rein": NO_REIN}


class RealityConstants(Strict):
    """What a measured host adds to a textbook."""

    rate_cv: float = Field(0.0, ge=0.0, le=2.0)
    """Noise of the offered rate against the configured one, beyond Poisson."""
    rate_seconds: float = Field(5.0, gt=0.0)
    """Its correlation time."""
    drift_cv: float = Field(0.0, ge=0.0, le=2.0)
    """Slow drift of the host's speed."""
    drift_seconds: float = Field(300.0, gt=0.0)
    """Its correlation time."""
    tail_cv: float = Field(0.0, ge=0.0, le=2.0)
    """Noise of a window's quantile beyond that of a finite sample."""
    spikes_per_hour: float = Field(0.0, ge=0.0)
    """Rare stalls of the LC that nobody is to blame for."""
    spike_seconds: float = Field(0.0, ge=0.0)
    """Their length."""
    missing_ratio: float = Field(0.0, ge=0.0, lt=1.0)
    """Share of windows whose latency and load never arrive."""
    delay_ticks: float = Field(0.0, ge=0.0, le=8.0)
    """Whole ticks by which latency and load arrive late."""
    idle_watts: float = Field(0.0, ge=0.0)
    """Power of the idle host."""
    watts_per_cpu: float = Field(0.0, ge=0.0)
    """Power more per busy CPU."""


class HostProfile(Strict):
    """One kind of host.

    Attributes:
        name: Shown in tables and results.
        description: In a line.
        source: Where its constants are from.
        link: What LC and BE share behind the CPU; none where nothing of it is ever short.
        restart: When the LC becomes another one; none where it stays what it is.
        rein: What may move BE's level beside the CPUs; none where nothing does.
        fitted: The region in which they were fitted: name of a quantity to [low, high].
        ranges: Constants that differ from host to host in training: name to [low, high].
    """

    name: str
    description: str
    source: str
    lc: LcConstants
    be: BeConstants
    sharing: SharingConstants = Field(default_factory=lambda: SharingConstants.model_validate({}))
    interference: InterferenceConstants = Field(default_factory=lambda: InterferenceConstants.model_validate({}))
    link: LinkConstants | None = None
    restart: RestartConstants | None = None
    rein: ReinConstants | None = None
    reality: RealityConstants = Field(default_factory=lambda: RealityConstants.model_validate({}))
    fitted: dict[str, tuple[float, float]] = Field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ranges_are_of_constants(self) -> HostProfile:
        known = self.values()
        for name, (low, high) in self.ranges.items():
            if name not in known:
                raise ValueError(f"ranges: there is no constant {name!r}")
            if not low <= high:
                raise ValueError(f"ranges: {name}: {low:g} is above {high:g}")
            try:
                for end in (low, high):
                    self.model_copy(update={"ranges": {}}).but(**{name: end})
            except ConfigError as error:
                raise ValueError(f"ranges: {error}") from error
        return self

    def values(self) -> dict[str, float]:
        """Every constant by its name."""
        optional = self.link or NO_LINK, self.restart or NO_RESTART, self.rein or NO_REIN
        sections = (self.lc, self.be, self.sharing, self.interference, *optional, self.reality)
        return {name: value for section in sections for name, value in section.model_dump().items()}

    @property
    def digest(self) -> str:
        """Hash of all constants, which stands in every result."""
        text = self.model_dump_json(exclude={"name", "description", "source"}, exclude_none=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def limits(self, weight: Weight = Weight.EQUAL, levels: int = 20) -> Limits:
        """The range of allocations on such a host, where BE has this CPU weight."""
        cpus, exclusive = round(self.be.host_cpus), int(self.be.own_cpus)
        return Limits(
            cpus, self.lc.lc_cpus, levels=levels, exclusive_cpus=min(exclusive, cpus), least_weight=weight.is_least
        )

    def but(self, **changes: float) -> HostProfile:
        """A copy with some constants changed, by name; ConfigError: there is no such one, or no such value."""
        data: dict[str, Any] = self.model_dump()
        # A profile without a restart has none of its constants until one of them is named; likewise a rein.
        for name, none in _OPTIONAL.items():
            if changes.keys() & type(none).model_fields.keys():
                data[name] = data[name] or none.model_dump()
        for name, value in changes.items():
            section = next((part for part in data.values() if isinstance(part, dict) and name in part), None)
            if section is None or name not in self.values():
                raise ConfigError(f"profile {self.name}: there is no constant {name!r}")
            section[name] = value
        return validate(HostProfile, data, f"profile {self.name}")


class Constants:
    """The constants of n hosts, each an array of shape (n,); names, units and sources as in the profile's sections."""

    def __init__(self, **columns: Array) -> None:
        vars(self).update(columns)

    def __getattr__(self, name: str) -> Array:  # of those that are not there, and for mypy of all
        raise AttributeError(f"a host has no constant {name!r}")

    @classmethod
    def stack(cls, profiles: Sequence[HostProfile]) -> Constants:
        """One host per profile; ranges are not drawn from."""
        rows = [profile.values() for profile in profiles]
        return cls(**{name: np.array([row[name] for row in rows], float) for name in rows[0]})

    @classmethod
    def drawn(cls, profile: HostProfile, seeds: NDArray[np.uint64]) -> Constants:
        """Hosts that differ within the profile's ranges, one per seed; constants without a range are the same."""
        columns = {name: np.full(len(seeds), value) for name, value in profile.values().items()}
        for place, (name, (low, high)) in enumerate(sorted(profile.ranges.items())):
            # Ranges are drawn in the order of their names: a new range with a later name changes no earlier draw.
            columns[name] = low + (high - low) * uniforms(seeds, 0, 1, RANGE_CHANNEL + place)[0]
        return cls(**columns)


def load_profile(name_or_file: str) -> HostProfile:
    """A shipped profile by name, or one of the user's by path; ConfigError: neither exists, or the file is wrong."""
    return load_model(HostProfile, shipped_or_own(name_or_file, "plants", "host profile"))
