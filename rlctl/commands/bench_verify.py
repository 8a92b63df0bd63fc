"""Result files of the simulator: `rlctl bench verify` runs again what one claims, and compares number by number.

`rlctl bench compare` says what differs between two, seed by seed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlctl import __version__
from rlctl.agents.training.cluster.connection import check_reachable
from rlctl.bench.comparison import Comparison, compare_runs, correct
from rlctl.bench.participants import refuse_files, require_library
from rlctl.bench.scenarios import changed, sim_scenario
from rlctl.bench.score import SimOutcome
from rlctl.bench.sim_plan import SimPlan
from rlctl.bench.workforce import workforce
from rlctl.commands.bench_runs import run_plan
from rlctl.envs.errors import ConfigError, reading
from rlctl.log.progress import say
from rlctl.report.page import render
from rlctl.report.table import difference_rows

MOST_SHOWN = 20
"""Differences that are printed; the rest is counted."""

MOST_QUOTED = 80
"""Characters of a value that are printed."""

LAST_PLACE = 1.5e-4
"""Estimates are written with four decimals: one unit in the last is no difference, a machine's last bit may do that."""

NOT_REPEATABLE = ("decision_seconds_p99", "controller_cpu_percent")
"""A manager's times that the machine decides, not the seed."""

ABSENT = "nothing"
"""Stands for a value that one of the two does not have."""

CONDITIONS = (
    *("scenario_digest", "profile_digest", "shield_digest", "duration_seconds", "adapt_seconds", "unopened"),
    "be_weight",
)
"""What must be the same, or the seeds met other hosts and a difference may not be the manager's."""

Difference = tuple[str, str, str]
"""Where it stands, what is claimed, what was found."""


class Claim(BaseModel):
    """What a result file says of one scenario; these keys are what it takes to run it again, the rest is compared."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    plant: Literal["sim"]
    scenario: str
    scenario_source: str = Field(min_length=1)
    scenario_digest: str
    profile_digest: str
    seeds: int = Field(ge=1)
    unopened: bool = False
    shield_source: str = Field(min_length=1)
    shield_digest: str
    duration_seconds: float = Field(gt=0.0)
    adapt_seconds: float = Field(default=0.0, ge=0.0)
    time_scale: float = Field(gt=0.0)
    be_weight: Literal["", "equal", "minimum", "idle"] = ""
    tuned: bool = False
    tuned_source: str = ""
    tuned_digest: str = ""
    rlctl: str
    managers: dict[str, dict[str, Any]] = Field(min_length=1)


def read_claims(path: Path) -> list[Claim]:
    """The claims of a result file, one per scenario.

    Raises:
        ConfigError: It cannot be read, or holds no result of the simulator.
        PermissionMissing: It may not be read.
    """
    try:
        with reading(path):
            data = json.loads(path.read_text(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        why = "too deeply nested" if isinstance(error, RecursionError) else error
        raise ConfigError(f"cannot be read as JSON: {why}", path) from error
    if not isinstance(data, dict) or isinstance(data.get("schema"), bool) or data.get("schema") != 1:
        raise ConfigError("is not a result of `rlctl bench --json FILE`: there is no schema 1", path)
    if "command" in data and {"paired", "scenarios"} & data.keys():
        raise ConfigError("is the result.json of a report; verify reads what `rlctl bench --json FILE` wrote", path)
    name = data.get("scenario")
    results = data.get("scenarios", {name if isinstance(name, str) else "": data})
    if not isinstance(results, dict) or not results or ("scenarios" in data and data.keys() - {"schema", "scenarios"}):
        raise ConfigError("holds more than schema 1 and results by scenario", path)
    return [_claim(result, name, path) for name, result in results.items()]


def _claim(result: object, name: str, path: Path) -> Claim:
    if isinstance(result, dict) and result.get("plant") == "host":
        why = "was measured on a live host, which is never the same twice; only plant sim is verified"
        raise ConfigError(why, path)
    try:
        claim = Claim.model_validate(result)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (name, *first["loc"]) if part != "")
        value = "" if first["type"] == "missing" else f", not {quote_value(first['input'])}"
        raise ConfigError(f"{place}: {first['msg']}{value}", path) from error
    if name not in ("", claim.scenario):
        raise ConfigError(f"{name}.scenario: is {claim.scenario}, but stands under {name}", path)
    if claim.tuned and not (claim.tuned_source and claim.tuned_digest):
        raise ConfigError(f"{claim.scenario}: tuned is true, but tuned_source or tuned_digest is missing", path)
    return claim


def _refuse_constant(name: str) -> float:
    """NaN and infinities, which Python reads but JSON does not have."""
    raise ValueError(f"{name} is not a number in JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command: 0 when everything agrees, 1 when something differs, is left out or is not written by a bench."""
    claims = read_claims(args.file)
    plans = [plan_of(claim) for claim in claims]  # all of them, before minutes are spent on the first
    require_library([name for plan in plans for name in plan.managers])
    check_reachable(args.ray, [name for plan in plans for name in plan.managers])
    differing = 0
    with workforce(args.jobs, args.ray, logs=args.verbose > 0) as workers:
        for claim, plan in zip(claims, plans, strict=True):
            if claim.rlctl != __version__:
                say(f"note: {claim.scenario}: was written by rlctl {claim.rlctl}, this is {__version__}")
            found: Any = json.loads(json.dumps(run_plan(plan, workers).as_json()))
            differing += _show(claim, list(_compare(claim.model_dump(exclude_unset=True), found)))
    print(f"not compared: {', '.join(NOT_REPEATABLE)}", flush=True)
    return 1 if differing else 0


def plan_of(claim: Claim) -> SimPlan:
    """The plan that was run; ConfigError where scenario, profile, shield or constants are not those of the claim."""
    refuse_files((*claim.managers, *claim.shield_source.split("+")[1:]), f"{claim.scenario}: the file")
    numbers = {"duration_seconds": claim.duration_seconds, "time_scale": claim.time_scale}
    scenario = changed(sim_scenario(claim.scenario_source), claim.be_weight or None, **numbers)
    tuned = claim.tuned_source if claim.tuned else ""
    plan = replace(
        SimPlan.of(scenario, tuple(claim.managers), claim.seeds, claim.shield_source, claim.scenario_source, tuned),
        adapt_seconds=claim.adapt_seconds,
        unopened=claim.unopened,
    )
    compared = [
        ("scenario", claim.scenario_digest, scenario.digest),
        (f"host profile {plan.host.name}", claim.profile_digest, plan.host.digest),
        (f"shield {plan.profile.name}", claim.shield_digest, plan.profile.digest),
    ]
    if plan.tuned:
        compared.append((f"file of constants {plan.tuned_source}", claim.tuned_digest, plan.tuned.digest))
    for what, claimed, found in compared:
        if claimed != found:
            raise ConfigError(
                f"{claim.scenario}: the {what} is {found} here and {claimed} in the file: another experiment; "
                "verify with the version that wrote it, or run it anew"
            )
    return plan


def _compare(claimed: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Difference]:
    """All that differs between two results; the header holds what was asked for, so it agrees to the last digit."""
    yield from differences(_header(claimed), _header(found), tolerance=0.0)
    yield from differences(_repeatable(claimed), _repeatable(found), "managers")


def _header(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in {"managers", "rlctl"}}


def _repeatable(result: Mapping[str, Any]) -> dict[str, Any]:
    """All of the managers but their times; remarks and numbers before the many estimates, for those are shown first."""
    managers: Mapping[str, Mapping[str, Any]] = result["managers"]
    repeatable: dict[str, Any] = {}
    for manager, one in managers.items():
        fixed = {name: value for name, value in one.items() if name not in NOT_REPEATABLE}
        repeatable[manager] = dict(sorted(fixed.items(), key=lambda item: isinstance(item[1], dict)))
    return repeatable


def differences(claimed: object, found: object, where: str = "", tolerance: float = LAST_PLACE) -> Iterator[Difference]:
    """Every number or text that differs, and every name that only one of two results has, with its place in the file.

    Args:
        tolerance: By how much numbers may differ, beside their ninth digit.
    """
    if isinstance(claimed, Mapping) and isinstance(found, Mapping):
        for name in (*claimed, *(name for name in found if name not in claimed)):
            place = f"{where}.{name}" if where else str(name)
            if name in claimed and name in found:
                yield from differences(claimed[name], found[name], place, tolerance)
            else:
                yield place, _quote(claimed, name), _quote(found, name)
    elif isinstance(claimed, list) and isinstance(found, list) and len(claimed) == len(found):
        for number, (one, other) in enumerate(zip(claimed, found, strict=True)):
            yield from differences(one, other, f"{where}[{number}]", tolerance)
    elif not _equal(claimed, found, tolerance):
        yield where, quote_value(claimed), quote_value(found)


def _equal(claimed: object, found: object, tolerance: float) -> bool:
    if isinstance(claimed, bool) or isinstance(found, bool):
        return claimed is found
    if isinstance(claimed, int | float) and isinstance(found, int | float):
        return math.isclose(claimed, found, rel_tol=1e-9, abs_tol=tolerance)
    return claimed == found


def quote_value(value: object) -> str:
    """A value as JSON has it, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}..."


def _quote(values: Mapping[str, object], name: str) -> str:
    return quote_value(values[name]) if name in values else ABSENT


def _show(claim: Claim, found: list[Difference]) -> int:
    size = f"{claim.scenario}: {len(claim.managers)} managers x {claim.seeds} seeds"
    if not found:
        print(f"{size}: equal", flush=True)
    for where, claimed, is_now in found[:MOST_SHOWN]:
        print(f"{claim.scenario}: {where}: claimed {claimed}, found {is_now}")
    if found:
        print(f"{size}: {len(found)} {'value differs' if len(found) == 1 else 'values differ'}", flush=True)
    return len(found)


def compare(args: argparse.Namespace) -> int:
    """Run the command; the table goes to stdout, what does not fit together to stderr."""
    old, new = ({claim.scenario: claim for claim in read_claims(path)} for path in (args.old, args.new))
    if alone := sorted(old.keys() ^ new.keys()):
        say(f"note: in one file only: {', '.join(alone)}")
    found = [one for name in old if name in new for one in _comparisons(old[name], new[name], args.old, args.new)]
    if not found:
        raise ConfigError(f"shares no manager on a scenario with {args.old}: there is nothing to compare", args.new)
    print(render(difference_rows("new less old", correct(found))))
    print("\n* Student's t and bootstrap leave out zero, the first after Holm's correction for all differences shown")
    return 0


def _comparisons(old: Claim, new: Claim, *files: Path) -> Iterator[Comparison]:
    """Every manager of both, on the seeds that both have: evaluation seeds are numbered from the first."""
    if other := [name for name in CONDITIONS if getattr(old, name) != getattr(new, name)]:
        say(f"note: {old.scenario}: another {', '.join(other)}: what differs may not be the manager's")
    before, after = (_outcome(claim, file) for claim, file in zip((old, new), files, strict=True))
    seeds = min(before.seeds, after.seeds)
    if before.seeds != after.seeds:
        say(f"note: {old.scenario}: {before.seeds} and {after.seeds} seeds; the first {seeds} are compared")
    for name in (name for name in before.managers if name in after.managers):
        ours, base = ({key: row[:seeds] for key, row in one.managers[name].items()} for one in (after, before))
        yield compare_runs(f"{old.scenario}: {name}", ours, base)


def _outcome(claim: Claim, file: Path) -> SimOutcome:
    try:
        return SimOutcome.of_json(claim.model_dump())
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{claim.scenario}: lacks values per seed: {error}", file) from error
