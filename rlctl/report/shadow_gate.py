"""The promotion gate: bounds on the figures of a report, and a yes or no with every reason."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from rlctl.agents.catalogue import label
from rlctl.bench.intervals import mean_interval
from rlctl.envs.errors import ConfigError, printable, reading
from rlctl.envs.yaml_edge import Strict, configs_folder, load_model
from rlctl.report.shadow_report import Report

SIMULATE = "compare policies on a profile of this host with `rlctl bench`"
"""What says how a shadow's moves would change the LC's latency: the log does not."""

Qos = Mapping[str, Sequence[Mapping[str, float]]]
"""By scenario, of each seed or live round: the share of windows that met the target, in percent, by manager."""


class LoadSection(Strict):
    """Where the load must have been.

    Attributes:
        from_percent: Of the LC's maximum: the lowest band that must have been seen.
        to_percent: Of the LC's maximum: the highest band that must have been seen.
        least_minutes_per_band: Time in each of the report's bands between them.
    """

    from_percent: float = Field(ge=0.0, le=200.0)
    to_percent: float = Field(gt=0.0, le=200.0)
    least_minutes_per_band: float = Field(ge=0.0)

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.from_percent >= self.to_percent:
            raise ValueError(f"from_percent {self.from_percent:g} is not below to_percent {self.to_percent:g}")
        return self


class Gate(Strict):
    """Bounds on a shadow that may be promoted; `configs/shadow/gate.yaml` says what each is for.

    Attributes:
        least_hours: Length of the log.
        most_error_percent: Ticks without an answer, or with a late one.
        most_override_percent: Ticks that the shield would have decided.
        most_drift_percent: Ticks unlike a learned policy's training.
        least_be_gain_points: CPUs of BE that it must gain over the acting policy, in points of BE's CPUs.
        most_qos_loss_points: Windows that it may miss more than the acting policy in a benchmark, in points.
    """

    REMOVED: ClassVar = dict.fromkeys(("violations", "simulator"), SIMULATE)

    least_hours: float = Field(ge=0.0)
    load: LoadSection
    most_error_percent: float = Field(ge=0.0, le=100.0)
    most_override_percent: float = Field(ge=0.0, le=100.0)
    most_drift_percent: float = Field(ge=0.0, le=100.0)
    least_be_gain_points: float
    most_qos_loss_points: float = Field(default=0.5, ge=0.0, le=100.0)


@dataclass(frozen=True, slots=True)
class Check:
    """One reason for or against a promotion, in plain words; the figure is NaN when there is none."""

    passed: bool
    text: str
    figure: float
    bound: float

    def as_json(self) -> dict[str, object]:
        """By name; JSON has no infinity and no NaN: null."""
        figure = self.figure if math.isfinite(self.figure) else None
        return {"passed": self.passed, "text": self.text, "figure": figure, "bound": self.bound}


def load_gate(path: Path | None = None) -> Gate:
    """A gate from a file; the one that ships when none is named."""
    return load_model(Gate, path or configs_folder("shadow") / "gate.yaml")


def read_qos(path: Path) -> Qos:
    """QoS from what `rlctl bench --json` wrote, by the names that it was given.

    Raises:
        ConfigError: The file is not such a result.
        PermissionMissing: It may not be read.
    """
    try:
        with reading(path):
            found = json.loads(path.read_text())
        scenarios = found.get("scenarios") or {found["scenario"]: found}
        return {scenario: _runs(one) for scenario, one in scenarios.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError("is not a result of `rlctl bench --json`", path) from error


def _runs(told: Mapping[str, Any]) -> Sequence[Mapping[str, float]]:
    if told["plant"] == "host":
        from rlctl.bench.rounds import LiveRounds  # `rlctl shadow watch` does without

        if "rounds" not in told:
            raise ConfigError("this live result is of before rounds were kept; run `rlctl bench` again")
        runs = [one.qos_percent for one in LiveRounds.model_validate(told).rounds if not one.is_marked]
    else:
        by_name = {name: row["per_seed"]["qos_guarantee_percent"] for name, row in told["managers"].items()}
        runs = [dict(zip(by_name, seed, strict=True)) for seed in zip(*by_name.values(), strict=True)]
    if not all(0.0 <= percent <= 100.0 for run in runs for percent in run.values()):  # NaN and infinity among them
        raise ValueError("not a share of windows in percent")
    return runs


def allows(gate: Gate, report: Report, name: str, qos: Qos | None = None) -> tuple[Check, ...]:
    """Every reason for and against a shadow; it may be promoted when all have passed.

    Args:
        qos: Of a benchmark with this policy and the acting one; without it the gate says no.
    """
    one, load = report.shadows[name], gate.load
    share, drift, gain = "% of the ticks", one.drift_percent, one.be_gain
    checks = [
        _least("watched", report.hours, gate.least_hours, "h"),
        *(
            _least(
                f"at a load of {band.from_percent:g} to {band.to_percent:g} % of the maximum",
                band.minutes,
                load.least_minutes_per_band,
                "min",
            )
            for band in report.load_bands
            if band.from_percent < load.to_percent and band.to_percent > load.from_percent
        ),
        _most("errors and late answers", one.error_percent, gate.most_error_percent, share),
        _most("refused by the shield, upper bound", one.refused_percent.ci95[1], gate.most_override_percent, share),
    ]
    if drift is not None:
        checks.append(_most("unlike its training, upper bound", drift.ci95[1], gate.most_drift_percent, share))
    # A gain or a loss that is not known is none that passes.
    gained = math.nan if gain is None else gain.points.ci95[0]
    checks.append(_least("BE's gain by the log, lower bound", gained, gate.least_be_gain_points, "points"))
    # By the very names: what another policy is called in a table may be the same.
    by = f"upper bound by --bench FILE of `rlctl bench --managers {printable(f'{report.acting},{name}')} --json FILE`"
    for scenario, runs in (qos or {"use": ()}).items():
        lost = [one[report.acting] - one[name] for one in runs if one.keys() >= {report.acting, name}]
        upper = mean_interval(lost).ci95[1] if lost else math.nan
        checks.append(_most(f"QoS lost in {scenario}, {by}", upper, gate.most_qos_loss_points, "points"))
    return tuple(checks)


def gate_lines(checks: Mapping[str, Sequence[Check]]) -> Iterator[str]:
    """Yes or no for each shadow, every reason, and what there is to do."""
    for name, reasons in checks.items():
        passed = all(check.passed for check in reasons)
        yield f"\npromote {printable(label(name))}: {'yes' if passed else 'no'}"
        for check in reasons:
            yield f"  {'ok' if check.passed else 'NO':2}  {check.text}"
        if passed:
            yield f"  in the serve configuration, section policy:   name: {printable(name)}"
            yield "  then: systemctl reload rlctl"


def _most(what: str, figure: float, bound: float, unit: str) -> Check:
    passed = figure <= bound  # False for NaN: what is not known passes no gate
    return Check(passed, f"{what}: {_figure(figure)} {unit} ({'<=' if passed else '>'} {bound:g})", figure, bound)


def _least(what: str, figure: float, bound: float, unit: str) -> Check:
    passed = figure >= bound
    return Check(passed, f"{what}: {_figure(figure)} {unit} ({'>=' if passed else '<'} {bound:g})", figure, bound)


def _figure(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "unknown"
