"""What a tick log says of itself: who decided, under which shield, on what host; enough to run it again elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import Field

from rlctl import __version__
from rlctl.agents.policy import Policy
from rlctl.envs.actions import ALL_CPUS
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import RlctlError
from rlctl.envs.host.cgroup.journal import boot_id
from rlctl.envs.plant import Plant
from rlctl.envs.yaml_edge import Strict
from rlctl.log.record import Tick
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield

SCHEMA = 1


class _Limits(Strict):
    """`rlctl.envs.allocation.Limits` of some host that can be."""

    cpus: int = Field(ge=1, le=ALL_CPUS)
    lc_cpus: float = Field(gt=0.0, le=ALL_CPUS)
    min_quota_cpus: float = Field(gt=0.0, le=ALL_CPUS)
    levels: int = Field(ge=1, le=ALL_CPUS)
    exclusive_cpus: int = Field(0, ge=0, le=ALL_CPUS)
    least_weight: bool = False
    can_freeze: bool = True


def header_of(
    plant: Plant, policy: Policy, shield: Shield | None, workloads: Mapping[str, object] | None = None
) -> Callable[[Tick], Mapping[str, object]]:
    """Says the header of a run, for `TickLog.header`. To be called before the run begins; None: nobody ruled on it.

    What the guards remember is in it, as of their verdict on the tick that follows: so a log whose beginning has been
    rotated away can still be checked.

    Args:
        workloads: Who LC and BE are, as `ServeConfig.named_workloads` has it.
    """
    fixed: dict[str, object] = {
        "log": SCHEMA,
        "rlctl": __version__,
        "boot_id": _boot_id(),
        "pid": os.getpid(),
        "started": round(time.time(), 6),
        "policy": _name_and_hash(policy),
        "heuristic": _name_and_hash(policy.heuristic) if policy.heuristic else None,
        "limits": asdict(plant.limits),
        "tick_seconds": plant.tick_seconds,
    }
    if workloads:
        fixed["workloads"] = workloads
    if shield:
        described = {"name": shield.profile.name, "digest": shield.digest, "profile": shield.profile.model_dump()}
        fixed["shield"] = described

    def header(tick: Tick) -> Mapping[str, object]:
        return fixed | {
            "target_seconds": _json_value(next(iter(tick.telemetry.targets_seconds.values()))),
            "targets_seconds": {name: _json_value(one) for name, one in tick.telemetry.targets_seconds.items()},
            "guards": {name: _json_value(memory) for name, memory in (shield.state if shield else {}).items()},
        }

    return header


def limits_in(header: Mapping[str, Any]) -> Limits | None:
    """The host's limits that a header names; None when it names none that can be."""
    try:
        return Limits(**_Limits.model_validate(header.get("limits")).model_dump())
    except (ValueError, RlctlError):
        return None


def profile_in(header: Mapping[str, Any]) -> Profile | None:
    """The safety profile that a header holds; None when there is none, or it is not one of this rlctl."""
    try:
        return Profile.model_validate(header["shield"]["profile"])
    except (KeyError, TypeError, ValueError):
        return None


def run_in(header: Mapping[str, Any]) -> tuple[object, ...]:
    """What two headers of the same run have in common, and no others."""
    return tuple(repr(header.get(name)) for name in ("boot_id", "pid", "started"))


def _name_and_hash(policy: Policy) -> dict[str, str]:
    return {"name": policy.name, "hash": policy.digest}


def _json_value(memory: object) -> object:
    """Plain data for JSON, which has no NaN and no infinity."""
    if isinstance(memory, dict):
        return {name: _json_value(value) for name, value in memory.items()}
    return str(memory) if isinstance(memory, float) and not math.isfinite(memory) else memory


def _boot_id() -> str:
    try:
        return boot_id()
    except RlctlError:
        return ""
