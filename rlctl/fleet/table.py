"""A fleet's tables: the whole, kind by kind, and managers against the first of them host by host."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlctl.agents.catalogue import label
from rlctl.fleet.run import STRETCH_SECONDS, FleetOutcome
from rlctl.fleet.score import HELD_PERCENT, FleetScore, Spread, figures_of, groups_of, over_hosts, score
from rlctl.report.table import render

__all__ = ["caption", "tables"]

HEADER = (
    "manager", "QoS %", "95 %", "worst host %", f"hosts < {HELD_PERCENT:g} %", "worst x", "BE %", "95 %", "EMU %",
    "machines saved", "95 %", "frozen %", "override %",
)  # fmt: skip


def tables(outcome: FleetOutcome) -> str:
    """Markdown, which a terminal shows as well."""
    parts = [render(_fleet_rows(outcome)), render(_group_rows(outcome))]
    parts += [render(_paired_rows(outcome))] if len(outcome.runs) > 1 else []
    return "\n\n".join([*parts, caption(outcome)])


def caption(outcome: FleetOutcome) -> str:
    """What it takes to read the tables."""
    plan, fleet = outcome.plan, outcome.plan.fleet
    failed = [
        f"{label(name)}: {one:.3f} % of ticks without a usable answer"
        for name, run in outcome.runs.items()
        if (one := 100.0 * float(run.tally.failed.mean()) / STRETCH_SECONDS) > 0.0
    ]
    return " ".join(
        [
            f"Fleet {fleet.name} ({fleet.digest}), seed {plan.seed}: {plan.hosts} simulated hosts x "
            f"{plan.stretches * STRETCH_SECONDS / 3600.0:g} h, {plan.windows} windows of each, scored on the truth;",
            f"shield {plan.shield.name} ({plan.shield.digest}) for those judged behind one.",
            "Intervals: bootstrap over hosts. worst x: worst window by the target. EMU: LC load + BE work.",
            "machines saved: sum over hosts of BE work / BE alone x CPUs that BE keeps busy alone, by the "
            f"{fleet.machine_cpus:g} CPUs of a standard machine.",
            "Never trained on: some constant leaves the ranges of every kind in configs/training/hosts.yaml.",
            *failed,
        ]
    )


def _fleet_rows(outcome: FleetOutcome) -> list[tuple[str, ...]]:
    everywhere = np.ones(outcome.plan.hosts, np.bool_)
    rows: list[tuple[str, ...]] = [HEADER]
    for name, run in outcome.runs.items():
        one = score(figures_of(run.tally, outcome.alone_cpus, outcome.plan.fleet.machine_cpus), everywhere)
        rows.append(
            (
                label(name),
                f"{one.qos.mean:.3f}",
                _interval(one.qos, 3),
                f"{one.worst_host_percent:.2f}",
                f"{one.below_percent:.1f} %",
                f"{one.worst_ratio:.1f}",
                f"{one.be.mean:.1f}",
                _interval(one.be, 1),
                f"{one.emu.mean:.0f}",
                f"{one.machines.mean:.1f}",
                _interval(one.machines, 1),
                f"{one.frozen_percent:.1f}",
                f"{one.override_percent:.1f}",
            )
        )
    return rows


def _group_rows(outcome: FleetOutcome) -> list[tuple[str, ...]]:
    """A row for each kind and for both sorts of kinds; QoS, worst host and BE of each manager."""
    fleet = outcome.plan.fleet
    found = {name: figures_of(run.tally, outcome.alone_cpus, fleet.machine_cpus) for name, run in outcome.runs.items()}
    leaving = {kind.name: _leaving(kind.untrained) for kind in fleet.kinds}
    rows: list[tuple[str, ...]] = [
        ("kind: QoS % (worst host) / BE %", "hosts", *(label(name) for name in found), "leaves training by")
    ]
    for group, which in groups_of(fleet, outcome.roster).items():
        cells = [_cell(score(figures, which)) for figures in found.values()]
        rows.append((group, str(int(which.sum())), *cells, leaving.get(group, "")))
    return rows


def _leaving(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _cell(one: FleetScore) -> str:
    return f"{one.qos.mean:.2f} ({one.worst_host_percent:.1f}) / {one.be.mean:.1f}"


def _paired_rows(outcome: FleetOutcome) -> list[tuple[str, ...]]:
    found = {name: figures_of(run.tally, outcome.alone_cpus, 1.0) for name, run in outcome.runs.items()}
    first, *others = found
    rows: list[tuple[str, ...]] = [
        (f"less {label(first)}, host by host", "QoS points", "95 %", "BE points", "95 %", "hosts with less QoS")
    ]
    for name in others:
        one, base = found[name], found[first]
        qos, be = (
            over_hosts(one.qos_percent - base.qos_percent),
            over_hosts(one.be_percent - base.be_percent),
        )
        worse = 100.0 * float(np.mean(one.qos_percent < base.qos_percent))
        cells = (f"{qos.mean:+.3f}", _interval(qos, 3), f"{be.mean:+.1f}", _interval(be, 1), f"{worse:.1f} %")
        rows.append((label(name), *cells))
    return rows


def _interval(spread: Spread, digits: int) -> str:
    if not math.isfinite(spread.low):
        return "one host"
    return f"{spread.low:.{digits}f} to {spread.high:.{digits}f}"
