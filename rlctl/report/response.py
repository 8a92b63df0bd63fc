"""What a learned policy does over load and slack, on two kinds of hosts, and what a service has learned of its own."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.batch_learned import BatchLearned
from rlctl.agents.batch_runner import BatchPolicyRunner
from rlctl.agents.served.bundle import Bundle
from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.arrays import Array
from rlctl.envs.errors import ConfigError, printable
from rlctl.envs.experience import EXPLORE_WINDOWS, SafeLevelMemory, allocation_at
from rlctl.envs.level_counts import TOP, load_of
from rlctl.envs.readings import Readings
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.workload import Weight
from rlctl.report.figures import new_figure
from rlctl.report.page import render
from rlctl.safety.profile import Profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LOADS: Array = np.round(np.arange(0.05, 1.101, 0.05), 2)
SLACKS: Array = np.round(np.arange(-0.3, 0.951, 0.05), 2)

MOST_TICKS = 60 + TOP * round(EXPLORE_WINDOWS)
"""Control periods after which what still changes is a cycle. Growth from nothing to all takes the shield 36 at most,
and a policy that goes on level by level so many for each."""

QUIET_TICKS = 100
"""Control periods without a change after which none comes: more than a level has to hold before the next is tried."""

CYCLE_TICKS = 12
"""A cycle is shown by its mean over so many."""


@dataclass(frozen=True, slots=True)
class Host:
    """A kind of host that surfaces are drawn for."""

    title: str
    profile: str
    weight: Weight


HOSTS = (
    Host("18 cores, BE at the minimum weight", "thesis-host", Weight.MINIMUM),
    Host("1 shared CPU, BE at equal weight", "two-core-nginx", Weight.EQUAL),
)


@dataclass(frozen=True, slots=True)
class Surface:
    """A policy on one kind of host.

    Attributes:
        be_share: What BE may use of its CPUs in the end, 0 where it is frozen; shape (len(SLACKS), len(LOADS)).
        settled: Where nothing changed any more, same shape; elsewhere `be_share` is the mean of a cycle.
    """

    host: Host
    be_share: Array
    settled: NDArray[np.bool_]

    def as_json(self) -> dict[str, object]:
        """Rows by slack, columns by load."""
        return {
            "host": self.host.title,
            "profile": self.host.profile,
            "weight": self.host.weight.value,
            "load_ratio": LOADS.tolist(),
            "slack_ratio": SLACKS.tolist(),
            "be_share": np.round(self.be_share, 4).tolist(),
            "settled": self.settled.tolist(),
        }


def surface(bundle: Bundle, host: Host, shield: Profile) -> Surface:
    """Hold every load and slack, and let the policy move until it has settled.

    The shield's mask and last word are in force, as where the policy serves.

    Raises:
        BundleError: The network does not run.
    """
    profile = load_profile(host.profile)
    limits = profile.limits(host.weight)
    load, slack = (one.ravel() for one in np.meshgrid(LOADS, SLACKS))
    tick_seconds, lags = bundle.card.tick_seconds, bundle.card.lags
    hosts = VectorLimits([limits] * len(load))
    policy = BatchLearned(bundle.logits, lags, hosts, tick_seconds)
    runner = BatchPolicyRunner(policy, shield, hosts)
    current = runner.begin()
    shares: list[Array] = []
    changed = 0
    for tick in range(MOST_TICKS):
        readings = _readings(profile, host.weight, load, slack, current, tick * tick_seconds)
        current = runner.decide(readings, current).allocations
        usable = np.minimum(current.quota_cpus, current.cpuset_cpus) / limits.cpus
        shares.append(np.where(current.frozen, 0.0, usable))
        changed = tick if len(shares) < 2 or (shares[-1] != shares[-2]).any() else changed
        if tick - changed >= QUIET_TICKS:
            break
    last = np.stack(shares[-CYCLE_TICKS:])
    shape = (len(SLACKS), len(LOADS))
    return Surface(host, last.mean(axis=0).reshape(shape), (last == last[-1]).all(axis=0).reshape(shape))


def text(one: Surface) -> str:
    """The surface for a terminal: percent of BE's CPUs, `~` where it cycles."""
    columns = range(1, len(LOADS), 2)
    rows: list[Sequence[str]] = [("slack \\ load", *(f"{100 * LOADS[column]:.0f} %" for column in columns))]
    for row in range(len(SLACKS) - 1, -1, -2):
        shares = ((100 * one.be_share[row, column], one.settled[row, column]) for column in columns)
        cells = (f"{share:.0f}" if settled else f"~{share:.0f}" for share, settled in shares)
        rows.append((f"{100 * SLACKS[row]:.0f} %", *cells))
    return (
        f"{one.host.title}: percent of its CPUs that BE may use in the end (0: frozen; ~: mean of a cycle)\n"
        + render(rows)
    )


def draw(surfaces: Sequence[Surface], title: str) -> Figure:
    """All surfaces side by side; ConfigError: matplotlib is not installed."""
    figure = new_figure(5.0 * len(surfaces), 4.2)
    axes = np.atleast_1d(figure.subplots(1, len(surfaces), sharey=True))
    for axis, one in zip(axes, surfaces, strict=True):
        mesh = axis.pcolormesh(
            100 * LOADS, 100 * SLACKS, 100 * one.be_share, vmin=0, vmax=100, cmap="cividis", shading="nearest"
        )
        cycling = np.argwhere(~one.settled)
        axis.plot(100 * LOADS[cycling[:, 1]], 100 * SLACKS[cycling[:, 0]], ".", color="white", ms=2)
        axis.set_title(one.host.title, loc="left", fontsize=10)
        axis.set_xlabel("load, % of the LC's maximum")
    axes[0].set_ylabel("slack, % of the target")
    figure.colorbar(mesh, ax=list(axes), label="BE may use, % of its CPUs (dots: it cycles)")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _readings(
    profile: HostProfile, weight: Weight, load: Array, slack: Array, current: Allocations, time_seconds: float
) -> Readings:
    """What the sensors of such hosts would say, without noise."""
    lc, be, interference = profile.lc, profile.be, profile.interference
    per_request = lc.service_seconds + lc.wake_seconds * np.clip(1.0 - load, 0.0, 1.0)
    lc_cpus = np.minimum(load * lc.max_load_rps * per_request, lc.lc_cpus)
    wanted = np.minimum(np.minimum(current.quota_cpus, current.cpuset_cpus), be.threads) * ~current.frozen
    own = np.minimum(wanted, be.own_cpus)
    room = be.shared_cpus - lc_cpus * be.shared_cpus / lc.lc_cpus
    if weight is Weight.EQUAL:
        room = np.maximum(room, be.shared_cpus / 2.0)
    shared = np.minimum(wanted - own, room)
    busy = lc_cpus / lc.lc_cpus
    waited = busy * shared / max(be.shared_cpus, 1.0)
    nothing = np.zeros_like(load)
    tail = (1.0 - slack) * lc.target_seconds
    return Readings(
        time_seconds=np.full_like(load, time_seconds),
        target_seconds=np.full_like(load, lc.target_seconds),
        tail_latency_seconds=tail,
        oldest_request_seconds=nothing,
        load_ratio=load,
        samples=np.full_like(load, 1e6),
        lost=np.zeros(len(load), np.bool_),
        age_seconds=nothing,
        cpi=interference.cpi * (1.0 + interference.cpi_load_ratio * busy),
        lc_cpu_seconds_per_request=per_request,
        lc_cpus=lc_cpus,
        be_cpus=own + shared,
        host_cpus=lc_cpus + own + shared,
        lc_pressure_ratio=np.maximum(waited, 0.002),
        lc_run_delay_ratio=waited * lc.lc_cpus,
        be_work_rate=nothing,
        true_latency_seconds=tail,
        rein=nothing,
        be_used_ratio=nothing,
        fell_ratio=nothing,
    )


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
