"""What a tick log says of itself: who decided, under which shield, on what host; enough to run it again elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from rlctl import __version__
from rlctl.agents.policy import Policy
from rlctl.envs.errors import RlctlError
from rlctl.envs.host.cgroup.journal import boot_id
from rlctl.envs.plant import Plant
from rlctl.log.record import Tick
from rlctl.safety.shield import Shield

SCHEMA = 1


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
