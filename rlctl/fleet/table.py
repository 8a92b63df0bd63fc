"""A fleet's tables: the whole, kind by kind, and managers against the first of them host by host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlctl.agents.catalogue import label
from rlctl.fleet.fleet_score import (
    HELD_PERCENT,
    Figures,
    FleetScore,
    Spread,
    figures_by_manager,
    groups_of,
    over_hosts,
    score,
)
from rlctl.fleet.plan import STRETCH_SECONDS
from rlctl.fleet.simulation import FleetOutcome
from rlctl.report.table import percent, render, span

HEADER = (
    "manager", "QoS %", "95 %", "worst host %", f"hosts < {HELD_PERCENT:g} %", "worst x", "BE %", "95 %", "EMU %",
    "machines saved", "95 %", "frozen %", "override %",
)  # fmt: skip


def tables(outcome: FleetOutcome) -> str:
    """All tables in Markdown, which a terminal shows as well, with what it takes to read them."""
    figures = dict(figures_by_manager(outcome))
    parts = [render(_fleet_rows(figures)), render(_group_rows(outcome, figures))]
    parts += [render(_paired_rows(figures))] if len(figures) > 1 else []
    return "\n\n".join([*parts, caption(outcome)])


def caption(outcome: FleetOutcome) -> str:
    """What it takes to read the tables."""
    plan, fleet = outcome.plan, outcome.plan.fleet
    failed_percent = {
        name: 100.0 * float(result.tally.failed.mean()) / STRETCH_SECONDS for name, result in outcome.results.items()
    }
    return " ".join(
        [
            f"Fleet {fleet.name} ({fleet.digest}), seed {plan.seed}: {plan.hosts} simulated hosts x "
            f"{plan.stretches * STRETCH_SECONDS / 3600.0:g} h, {plan.windows} windows of each, scored on the truth;",
            f"shield {plan.shield.name} ({plan.shield.digest}) for those judged behind one.",
            "Intervals: bootstrap over hosts. worst x: worst window by the target. EMU: LC load + BE work.",
            "machines saved: sum over hosts of BE work / BE alone x CPUs that BE keeps busy alone, by the "
            f"{fleet.machine_cpus:g} CPUs of a standard machine.",
            "Never trained on: some constant leaves the ranges of every kind in configs/training/hosts.yaml.",
            *(
                f"{label(name)}: {percent:.3f} % of ticks without a usable answer"
                for name, percent in failed_percent.items()
                if percent > 0.0
            ),
        ]
    )


def _fleet_rows(figures: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [HEADER]
    for name, each in figures.items():
        total = score(each)
        rows.append(
            (
                label(name),
                percent(total.qos.mean, 3),
                _interval(total.qos, 3),
                percent(total.worst_host_percent, 2),
                f"{total.below_percent:.1f} %",
                f"{total.worst_ratio:.1f}",
                f"{total.be.mean:.1f}",
                _interval(total.be, 1),
                f"{total.emu.mean:.0f}",
                f"{total.machines.mean:.1f}",
                _interval(total.machines, 1),
                f"{total.frozen_percent:.1f}",
                f"{total.override_percent:.1f}",
            )
        )
    return rows


def _group_rows(outcome: FleetOutcome, figures: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    """A row for each group of hosts; QoS, worst host and BE of each manager."""
    fleet = outcome.plan.fleet
    leaving = {kind.name: _leaving(kind.untrained) for kind in fleet.kinds}
    rows: list[tuple[str, ...]] = [
        ("kind: QoS % (worst host) / BE %", "hosts", *(label(name) for name in figures), "leaves training by")
    ]
    for group, which in groups_of(fleet, outcome.roster).items():
        cells = [_cell(score(each, which)) for each in figures.values()]
        rows.append((group, str(int(which.sum())), *cells, leaving.get(group, "")))
    return rows


def _leaving(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _cell(group: FleetScore) -> str:
    return f"{percent(group.qos.mean, 2)} ({percent(group.worst_host_percent, 1)}) / {group.be.mean:.1f}"


def _paired_rows(figures: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    """A row for each manager but the first: its hosts less the same hosts under the first."""
    (first, base), *others = figures.items()
    rows: list[tuple[str, ...]] = [
        (f"less {label(first)}, host by host", "QoS points", "95 %", "BE points", "95 %", "hosts with less QoS")
    ]
    for name, each in others:
        qos, be = over_hosts(each.qos_percent - base.qos_percent), over_hosts(each.be_percent - base.be_percent)
        worse = 100.0 * float(np.mean(each.qos_percent < base.qos_percent))
        cells = (f"{qos.mean:+.3f}", _interval(qos, 3), f"{be.mean:+.1f}", _interval(be, 1), f"{worse:.1f} %")
        rows.append((label(name), *cells))
    return rows


def _interval(spread: Spread, digits: int) -> str:
    return span((spread.low, spread.high), f".{digits}f", "one host")
