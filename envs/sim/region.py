"""Where a profile was fitted, and whether a run leaves that region."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.sim.surface import Cell

LOAD, QUOTA = "load_rps", "quota_cpus"
# Loads are compared with this much room: a configured load is never met to the request.
SLACK_RATIO = 0.02


def region_of(cells: Sequence[Cell]) -> dict[str, tuple[float, float]]:
    """The region that cells cover: `load_rps`, and `quota_cpus` where BE was there; no quota counts as all its CPUs."""
    loads = [cell.rate_rps for cell in cells]
    region = {LOAD: (min(loads), max(loads))}
    quotas = [min(cell.quota_cpus, cell.own_cpus + cell.shared_cpus) for cell in cells if not cell.frozen]
    if quotas:
        region[QUOTA] = (min(quotas), max(quotas))
    return region


def outside(profile: HostProfile, load_low: float, load_high: float) -> list[str]:
    """What a run with loads from low to high (shares of the LC's maximum) asks of a profile beyond where it was fitted.

    One line each, for the user. A profile without `fitted` is not from a sweep: it has no region to leave.
    """
    low, high = profile.fitted.get(LOAD, (0.0, math.inf))
    most = profile.lc.max_load_rps
    lines = []
    if load_low * most < low * (1.0 - SLACK_RATIO):
        lines.append(
            f"the load falls to {load_low * most:.0f} rps; profile {profile.name} was fitted from {low:.0f} rps on"
        )
    if load_high * most > high * (1.0 + SLACK_RATIO):
        lines.append(
            f"the load rises to {load_high * most:.0f} rps; profile {profile.name} was fitted up to {high:.0f} rps"
        )
    return lines
