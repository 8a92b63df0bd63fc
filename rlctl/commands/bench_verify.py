"""`rlctl bench verify`: runs again what a result file of the simulator claims, and compares number by number."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlctl import __version__
from rlctl.envs.errors import ConfigError, PermissionMissing

if TYPE_CHECKING:
    from rlctl.bench_sim import SimPlan

__all__ = ["Claim", "differences", "plan_of", "read_claims", "run"]

MOST_SHOWN = 20
"""Differences that are printed; the rest is counted."""

LAST_PLACE = 1.5e-4
"""Estimates are written with four decimals: one unit in the last is no difference, a machine's last bit may do that."""

NOT_REPEATABLE = frozenset({"decision_seconds_p99", "controller_cpu_percent"})
"""Times that the machine decides, not the seed."""


class Claim(BaseModel):
    """What a result file says of one scenario, as far as it can be run again."""

    model_config = ConfigDict(extra="allow", frozen=True)

    plant: Literal["sim"]
    scenario: str
    scenario_source: str
    scenario_digest: str
    profile_digest: str
    shield_source: str
    shield_digest: str
    seeds: int = Field(ge=1)
    duration_seconds: float = Field(gt=0.0)
    time_scale: float = Field(gt=0.0)
    tuned: bool = False
    tuned_source: str = ""
    tuned_digest: str = ""
    rlctl: str
    managers: dict[str, dict[str, Any]] = Field(min_length=1)


def run(args: argparse.Namespace) -> int:
    """Run the command: 0 when everything agrees, 1 when a number differs.

    Raises:
        ConfigError: The file is no such result, or what it was measured with is not what there is now.
    """
    from rlctl.commands.bench_sim import say, simulated

    claims = read_claims(args.file)
    plans = [plan_of(claim) for claim in claims]  # all of them, before minutes are spent on the first
    differing = 0
    for claim, plan in zip(claims, plans, strict=True):
        if claim.rlctl != __version__:
            say(f"{claim.scenario}: was written by rlctl {claim.rlctl}, this is {__version__}")
        found: Any = json.loads(json.dumps(simulated(plan, args.jobs).as_json()))
        differing += _told(claim, list(differences(claim.managers, found["managers"])))
    return 1 if differing else 0


def read_claims(path: Path) -> list[Claim]:
    """The claims of a result file, one per scenario.

    Raises:
        ConfigError: It cannot be read, or holds no result of the simulator.
        PermissionMissing: It may not be read.
    """
    try:
        data = json.loads(path.read_text())
    except PermissionError as error:
        raise PermissionMissing(f"{path}: may not be read") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read as JSON: {error}", path) from error
    if not isinstance(data, dict) or data.get("schema") != 1:
        raise ConfigError("is no result of `rlctl bench --json`: there is no schema 1", path)
    results = data["scenarios"].values() if isinstance(data.get("scenarios"), dict) else [data]
    return [_claim(result, path) for result in results]


def _claim(result: object, path: Path) -> Claim:
    if isinstance(result, dict) and result.get("plant") == "host":
        raise ConfigError(
            "was measured on a live host, which is never the same twice; only plant sim is verified", path
        )
    try:
        return Claim.model_validate(result)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", path) from error


def plan_of(claim: Claim) -> SimPlan:
    """The plan that was run, checked to be the same.

    Raises:
        ConfigError: Scenario, host profile, shield or tuned constants are not those of the claim, or are not there.
    """
    from rlctl.bench_sim import SimPlan
    from rlctl.safety.profile import load_profile
    from rlctl.scenario import load_scenario
    from rlctl.sim_scenario import SimScenario
    from rlctl.tuned import load_tuned

    loaded = load_scenario(claim.scenario_source)
    if not isinstance(loaded, SimScenario):
        raise ConfigError(f"scenario {claim.scenario_source} is not simulated")
    changes = {"duration_seconds": claim.duration_seconds, "time_scale": claim.time_scale}
    scenario = loaded.model_copy(update=changes)
    shield = load_profile(claim.shield_source).scaled(scenario.time_scale)
    plan = SimPlan(
        scenario,
        scenario.host(),
        tuple(claim.managers),
        claim.seeds,
        shield,
        claim.scenario_source,
        claim.shield_source,
        tuned=load_tuned(claim.tuned_source) if claim.tuned else None,
        tuned_source=claim.tuned_source,
    )
    _same(claim.scenario, "scenario", claim.scenario_digest, scenario.digest)
    _same(claim.scenario, f"host profile {plan.host.name}", claim.profile_digest, plan.host.digest)
    _same(claim.scenario, f"shield {shield.name}", claim.shield_digest, shield.digest)
    if plan.tuned:
        _same(claim.scenario, f"file of constants {plan.tuned_source}", claim.tuned_digest, plan.tuned.digest)
    for name in plan.managers:
        plan.shielded(name)
    return plan


def _same(scenario: str, what: str, claimed: str, found: str) -> None:
    if claimed != found:
        raise ConfigError(
            f"{scenario}: the {what} is {found} here and {claimed} in the file: another experiment; "
            "verify with the version that wrote it, or run it anew"
        )


def differences(claimed: object, found: object, where: str = "") -> Iterator[tuple[str, object, object]]:
    """Every number or text that differs: where it stands, what is claimed, what was found.

    Only what is claimed is compared; times are not, for the machine decides them.
    """
    if isinstance(claimed, Mapping) and isinstance(found, Mapping):
        for name, value in claimed.items():
            if name not in NOT_REPEATABLE:
                yield from differences(value, found.get(name), f"{where}.{name}" if where else str(name))
    elif isinstance(claimed, list) and isinstance(found, list) and len(claimed) == len(found):
        for place, (one, other) in enumerate(zip(claimed, found, strict=True)):
            yield from differences(one, other, f"{where}[{place}]")
    elif not _equal(claimed, found):
        yield where, claimed, found


def _equal(claimed: object, found: object) -> bool:
    if isinstance(claimed, int | float) and isinstance(found, int | float):
        return math.isclose(claimed, found, rel_tol=1e-9, abs_tol=LAST_PLACE)
    return claimed == found


def _told(claim: Claim, found: list[tuple[str, object, object]]) -> int:
    size = f"{claim.scenario}: {len(claim.managers)} managers x {claim.seeds} seeds"
    if not found:
        print(f"{size}: equal", flush=True)
    for where, claimed, is_now in found[:MOST_SHOWN]:
        print(f"{claim.scenario}: {where}: claimed {claimed}, found {is_now}")
    if found:
        print(f"{size}: {len(found)} values differ", flush=True)
    return len(found)
