"""What a result file of the simulator claims: read and checked before anything is run again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rlctl.agents import catalogue
from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.envs.run_metrics import METRICS

MOST_QUOTED = 40
"""Characters of a wrong value that are quoted."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Interval = Annotated[list[Finite | None], Field(min_length=2, max_length=2)]  # a single seed's has no bounds: null


class _Claimed(BaseModel):
    """Types are checked here; absent and unknown keys show in the comparison with what is written now."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)


class _Estimate(_Claimed):
    mean: Finite = 0.0
    ci95: Interval = []
    ci99: Interval = []


class _Numbers(_Claimed):
    """Of one manager, without the estimates."""

    decision_seconds_p99: Finite = 0.0
    controller_cpu_percent: Finite = 0.0
    missed_deadlines: int = 0
    samples: int = 0
    per_seed: dict[str, list[Finite]] = {}
    remarks: list[str] = []


_ESTIMATES: dict[str, Any] = {name: (_Estimate, _Estimate()) for name in METRICS}
_Manager: Any = create_model("_Manager", __base__=_Numbers, **_ESTIMATES)


class Claim(_Claimed):
    """What a result file says of one scenario; without what has no default it cannot be run again."""

    plant: Literal["sim"]
    scenario: str
    scenario_source: str = Field(min_length=1)
    scenario_digest: str
    profile: str = ""
    profile_digest: str
    seeds: int = Field(ge=1)
    shield: str = ""
    shield_source: str = Field(min_length=1)
    shield_digest: str
    duration_seconds: Finite = Field(gt=0.0)
    adapt_seconds: Finite = Field(default=0.0, ge=0.0)
    tick_seconds: Finite = 0.0
    target_milliseconds: Finite = 0.0
    time_scale: Finite = Field(gt=0.0)
    core_cpus: Finite = 0.0
    be_weight: Literal["", "equal", "minimum", "idle"] = ""
    tuned: bool = False
    tuned_source: str = ""
    tuned_digest: str = ""
    rlctl: str
    managers: dict[str, _Manager] = Field(min_length=1)

    def as_json(self) -> dict[str, Any]:
        """What stands in the file, no more."""
        return self.model_dump(exclude_unset=True)


def read_claims(path: Path) -> list[Claim]:
    """The claims of a result file, one per scenario.

    Raises:
        ConfigError: It cannot be read, or holds no result of the simulator.
        PermissionMissing: It may not be read.
    """
    data = _read(path)
    if not isinstance(data, dict):
        raise ConfigError(f"is no result of `rlctl bench --json`: no object, but {quoted(data)}", path)
    if isinstance(data.get("schema"), bool) or data.get("schema") != 1:
        raise ConfigError("is no result of `rlctl bench --json`: there is no schema 1", path)
    if "command" in data and {"paired", "scenarios"} & data.keys():
        raise ConfigError(_of_a_report(data), path)
    if "scenarios" not in data:
        name = data.get("scenario")
        return [_claim(data, name if isinstance(name, str) else "", path)]
    return [_claim(result, name, path) for name, result in _scenarios(data, path).items()]


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except PermissionError as error:
        raise PermissionMissing(f"{path}: may not be read") from error
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", path) from error
    except RecursionError as error:
        raise ConfigError("cannot be read as JSON: too deeply nested", path) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read as JSON: {error}", path) from error


def _of_a_report(data: Mapping[str, Any]) -> str:
    """A report adds comparisons, and calls one's own managers by labels, which nothing can be built from."""
    message = "is the result.json of a report; verify reads what `rlctl bench --json FILE` wrote"
    results = data["scenarios"].values() if isinstance(data.get("scenarios"), dict) else [data]
    managers = [name for result in results if isinstance(result, dict) for name in result.get("managers") or ()]
    if unknown := [name for name in managers if not catalogue.is_known(name)]:
        message += f", and runs no code of a file: {unknown[0]} does not ship"
    return message


def _scenarios(data: Mapping[str, object], path: Path) -> Mapping[str, object]:
    scenarios = data["scenarios"]
    if not isinstance(scenarios, dict) or not scenarios:
        raise ConfigError(f"scenarios: should hold results by scenario, not {quoted(scenarios)}", path)
    if unknown := sorted(data.keys() - {"schema", "scenarios"}):
        raise ConfigError(f"{unknown[0]}: `rlctl bench --json` writes no such key beside scenarios", path)
    for name, result in scenarios.items():
        if isinstance(result, dict) and result.get("scenario", name) != name:
            raise ConfigError(f"{name}.scenario: is {quoted(result['scenario'])}, but stands under {name}", path)
    return scenarios


def _claim(result: object, name: str, path: Path) -> Claim:
    if isinstance(result, dict) and result.get("plant") == "host":
        raise ConfigError(
            "was measured on a live host, which is never the same twice; only plant sim is verified", path
        )
    for place in _not_finite(result):
        raise ConfigError(f"{_dotted(name, *place)}: is no finite number", path)
    try:
        claim = Claim.model_validate(result)
    except ValidationError as error:
        first = error.errors()[0]
        value = "" if first["type"] == "missing" else f", not {quoted(first['input'])}"
        raise ConfigError(f"{_dotted(name, *first['loc'])}: {first['msg']}{value}", path) from error
    for needed in ("tuned_source", "tuned_digest") if claim.tuned else ():
        if not getattr(claim, needed):
            raise ConfigError(f"{_dotted(name)}: tuned is true, but {needed} is missing", path)
    return claim


def _not_finite(value: object, *place: str | int) -> Iterator[tuple[str | int, ...]]:
    """Where NaN and infinities stand, which Python reads but JSON does not have, and integers beyond any float."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _not_finite(part, *place, name)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _not_finite(part, *place, number)
    elif (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) > 2**63):
        yield place


def _dotted(*place: str | int) -> str:
    """A path as the comparison writes it, `thesis.managers.frozen.lc_cpus.ci95[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place if part != "")
    return text.removeprefix(".")


def quoted(value: object, most: int = MOST_QUOTED) -> str:
    """A value as JSON has it, cut after so many characters."""
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}..."
