"""Fit constants of host profiles to a measured surface, by the downhill simplex; the same input gives the same fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlctl.envs.arrays import Array
from rlctl.envs.errors import ConfigError, require_installed
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.sim.residuals import Residual, residuals, service_of
from rlctl.envs.sim.surface import Cell

# How the kernel shares a CPU: one value for all services of a machine.
SHARED = ("slice_seconds", "slice_weight_exponent", "crowd_exponent", "period_exponent")
# What a service and its client cost: a value for each profile.
OWN = ("service_seconds", "wake_seconds", "service_scv", "client_cpus", "client_cpu_seconds")
# What a link or disk that LC and BE share does, and the LC's tail where it is not in the way.
LINK = (
    "service_seconds", "wake_seconds", "service_scv", "base_seconds", "slice_seconds", "link_lc_bytes", "link_be_bytes",
    "link_lc_ratio", "link_burst_bytes", "link_bucket_bytes", "link_queue_bytes", "link_batch_ratio",
)  # fmt: skip
OFF = {"link_batch_ratio": 1.0}  # the value of a constant that stays as it is; of all others it is 0
FIRST_STEP = 0.25  # of a logarithm: constants are tried a quarter above where they begin
ENOUGH = 1e-4  # of the loss: corners that differ by less end the search
AGAIN = 0.01  # of the loss: a search that gained more is begun anew where it ended
NOWHERE = 1e3  # the loss of constants that no host can have
MOST_RATIO = 8.0  # at the edge of overload a cell jumps by more from repeat to repeat (docs/measured/simulator.md, 3)
SIDE = 1.5  # the target's wrong side counts as much as a factor of 4.5 in the p95
EDGE = 0.2  # of a logarithm: nearer to the target the wrong side counts less
CPUS = 0.1  # an error of CPUs that counts as much as a factor of e in the p95


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of a fit.

    Attributes:
        profiles: Fitted, by the beginning of the service's name.
        begun, ended: The loss before and after.
    """

    profiles: Mapping[str, HostProfile]
    begun: float
    ended: float
    calls: int


def fit(
    cells: Sequence[Cell],
    profiles: Mapping[str, HostProfile],
    shared: Sequence[str] = SHARED,
    own: Sequence[str] = OWN,
    calls: int = 800,
) -> Fit:
    """Move constants until the simulated surface is nearest to the measured one.

    Each profile counts the same, however many cells it has. Constants that are `OFF` stay so.

    Args:
        cells: The cells to fit; keep some aside.
        profiles: Where to begin, by the beginning of the service's name.
        calls: Most surfaces to simulate in each search.

    Raises:
        ConfigError: No cell, or a cell without a profile, or scipy is not installed.
    """
    if not cells:
        raise ConfigError("nothing to fit: the surface has no cell")
    first = next(iter(profiles.values())).values()
    places: list[tuple[str | None, str]] = [(None, name) for name in shared if first[name] != OFF.get(name, 0.0)]
    places += [(key, name) for key, one in profiles.items() for name in own if one.values()[name] != OFF.get(name, 0.0)]
    start = np.log([(first if key is None else profiles[key].values())[name] for key, name in places])

    def profiles_at(point: Array) -> dict[str, HostProfile]:
        values = [(key, name, float(value)) for (key, name), value in zip(places, np.exp(point), strict=True)]
        return {
            key: one.but(**{name: value for owner, name, value in values if owner in (None, key)})
            for key, one in profiles.items()
        }

    keys = [service_of(cell, profiles) for cell in cells]
    weights = np.array([1.0 / (keys.count(key) * len(set(keys))) for key in keys])

    def cost(point: Array) -> float:
        try:
            tried = profiles_at(point)
        except ConfigError:
            return NOWHERE
        return float(weights @ losses(residuals(cells, tried)))

    # A simplex may fall flat short of the least loss; a fresh one where it ended finds out.
    begun, used = cost(start), 0
    before, best = math.inf, start
    ended = begun
    while ended < (1.0 - AGAIN) * before:
        before = ended
        best, ended, more = nelder_mead(cost, best, calls)
        used += more
    return Fit(profiles_at(best), begun, ended, used)


def losses(rows: Sequence[Residual]) -> Array:
    """What a fit makes small, cell by cell: the distance of p95 in logarithms, of the target's side, and of CPUs.

    A cell far off counts no more than one by a factor of 8: the edge of overload decides about seconds of backlog.
    """
    ratio = np.array([row.ratio for row in rows])
    far = np.minimum(np.abs(np.log(ratio)), math.log(MOST_RATIO))
    beyond = np.array(
        [0.0 if row.same_side else abs(math.log(row.tail_latency_seconds / row.target_seconds)) for row in rows]
    )
    cpus = np.array([[row.be_error_cpus, row.lc_error_cpus] for row in rows])
    busy = np.minimum(np.abs(cpus) / CPUS, 3.0).mean(axis=1)
    wrong_side = 1.0 - np.exp(-beyond / EDGE)
    return np.asarray(far + SIDE * wrong_side + busy)


def nelder_mead(cost: Callable[[Array], float], start: Array, calls: int) -> tuple[Array, float, int]:
    """The best point, its cost, and how often it was asked: the downhill simplex of Nelder and Mead.

    `adaptive` are the coefficients of Gao and Han (2012) for many dimensions.

    Raises:
        ConfigError: scipy is not installed.
    """
    require_installed("a fit", "cli", "scipy")
    from scipy.optimize import minimize

    corners = np.vstack([start, start + FIRST_STEP * np.eye(len(start))])
    options = {"initial_simplex": corners, "maxfev": calls, "fatol": ENOUGH, "xatol": math.inf, "adaptive": True}
    best = minimize(cost, start, method="Nelder-Mead", options=options)
    return best.x, float(best.fun), int(best.nfev)
