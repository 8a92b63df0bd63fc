"""What came of a search: history.json with everything, trials.csv with a row per trial, a table, a figure."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.agents.training.evaluations import ALLOWANCE_POINTS
from rlctl.envs.whole_file import write_whole
from rlctl.report.figures import FAINT, INK, error_bar, new_figure, png
from rlctl.report.table import percent, render
from rlctl.training.search_choice import Lead, Standing

if TYPE_CHECKING:
    from rlctl.agents.training.search.tuner import TrialEnd
    from rlctl.training.search_plan import SearchPlan

HISTORY, TRIALS, FIGURE = "history.json", "trials.csv", "search.png"


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """A search that has come to its end.

    Attributes:
        standings: Those that did not fail, the winner first.
        as_shipped: The winner without its margins; None where none was searched.
        lineage: By trial, whose weights it had since when.
    """

    plan: SearchPlan
    trials: Sequence[TrialEnd]
    standings: Sequence[Standing]
    lead: Lead | None
    as_shipped: Standing | None
    seeds: Sequence[int]
    reports: Sequence[Mapping[str, Any]]
    lineage: Mapping[str, Sequence[Mapping[str, Any]]]
    ray: str

    def place_of(self, name: str) -> int | None:
        """A trial's place, from 1; None where it failed."""
        names = [one.name for one in self.standings]
        return names.index(name) + 1 if name in names else None

    def standing_of(self, name: str) -> Standing | None:
        """A trial's standing; None where it failed."""
        place = self.place_of(name)
        return self.standings[place - 1] if place else None


def document(found: SearchOutcome) -> dict[str, Any]:
    """As history.json has it."""
    return {
        "schema": 1,
        "search": found.plan.as_file() | {"ray": found.ray},
        "choice": {
            "seeds": list(found.seeds),
            "allowance_points": ALLOWANCE_POINTS,
            "winner": found.standings[0].name if found.standings else None,
            "ahead": found.lead.as_json() if found.lead else None,
            "winner_under_the_shield_as_it_ships": found.as_shipped.as_json() if found.as_shipped else None,
        },
        "trials": [_trial(found, one) for one in found.trials],
    }


def _trial(found: SearchOutcome, one: TrialEnd) -> dict[str, Any]:
    name, standing = one.candidate.name, found.standing_of(one.candidate.name)
    unknown = dict.fromkeys(("qos_percent", "be_percent", "override_percent", "shortfall_points"))
    return {
        "name": name,
        "place": found.place_of(name),
        "seed": one.candidate.seed,
        "values": dict(one.values),
        "timesteps": one.timesteps,
        "seconds": round(one.seconds, 1),
        "stopped_by": one.stopped_by or None,
        "error": one.error or None,
        **(standing.as_json() if standing else unknown),
        "lineage": list(found.lineage.get(name, ())),
        "reports": [dict(line) for line in found.reports if line["trial"] == name],
    }


def tables(found: SearchOutcome) -> str:
    """Scores of all trials, the winner first, and what they had."""
    by_name = {one.candidate.name: one for one in found.trials}
    names = [one.name for one in found.standings] + [name for name in by_name if found.place_of(name) is None]
    scores: list[tuple[str, ...]] = [("", "trial", "QoS %", "95 %", "BE %", "95 %", "short", "timesteps", "ended")]
    scores += [_row(found, by_name[name]) for name in names]
    keys = list(found.plan.job.space.base)
    values: list[tuple[str, ...]] = [("trial", *(key.removeprefix("shield.") for key in keys))]
    values += [(name, *(_plain(by_name[name].values[key]) for key in keys)) for name in names]
    return f"{render(scores)}\n\n{render(values)}"


def _row(found: SearchOutcome, one: TrialEnd) -> tuple[str, ...]:
    name = one.candidate.name
    place, cells = "", ("",) * 5
    if standing := found.standing_of(name):
        qos, be = standing.qos_percent, standing.be_percent
        place = str(found.place_of(name))
        cells = (
            percent(qos.mean, 2),
            f"{qos.ci95[0]:.2f} to {qos.ci95[1]:.2f}",
            f"{be.mean:.1f}",
            f"{be.ci95[0]:.1f} to {be.ci95[1]:.1f}",
            f"{standing.shortfall_points:.2f}",
        )
    return (place, name, *cells, f"{one.timesteps:,}", one.ending)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def verdict(found: SearchOutcome) -> list[str]:
    """What the tables do not say: how far ahead the winner is, and what its margins do."""
    winner, lines = found.standings[0], []
    if one := found.lead:
        clear = "clearly" if one.is_clear else "not clearly"
        ahead = f"ahead of {one.other} in {one.by}, {clear}" if one.by != "nothing" else f"level with {one.other}"
        (qos_low, qos_high), (be_low, be_high) = one.qos.t95, one.be.t95
        lines.append(
            f"{winner.name} is {ahead}: QoS {one.qos.mean:+.2f} points [{qos_low:+.2f}, {qos_high:+.2f}], "
            f"BE {one.be.mean:+.1f} points [{be_low:+.2f}, {be_high:+.2f}]"
        )
    if found.as_shipped:
        qos, be = found.as_shipped.qos_percent.mean, found.as_shipped.be_percent.mean
        lines.append(
            f"its margins are a proposal, winner/shield.yaml; under the shield as it ships it has QoS {qos:.2f} %, "
            f"BE {be:.1f} %"
        )
    return lines


def write(found: SearchOutcome, out: Path) -> list[str]:
    """Write history.json, trials.csv and, with matplotlib, search.png; returns what their reader must know."""
    write_whole(out / HISTORY, json.dumps(document(found), indent=1) + "\n")
    keys = list(found.plan.job.space.base)
    header = ("place", "trial", "seed", "qos_percent", "be_percent", "shortfall_points", "timesteps", "seconds")
    with (out / TRIALS).open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*header, "ended", *keys])
        for one in found.trials:
            name, scores = one.candidate.name, ("", "", "")
            if standing := found.standing_of(name):
                short = round(standing.shortfall_points, 4)
                scores = (standing.qos_percent.mean, standing.be_percent.mean, short)  # type: ignore[assignment]
            row = (found.place_of(name) or "", name, one.candidate.seed, *scores, one.timesteps, one.seconds)
            rows.writerow([*row, one.ending, *(one.values[key] for key in keys)])
    if find_spec("matplotlib") is None:
        return ["no figure: matplotlib is not installed (pip install 'rlctl[cli]')"]
    _draw(found, out / FIGURE)
    return []


def _draw(found: SearchOutcome, path: Path) -> None:
    """BE over QoS, a point per trial with its 95 % intervals."""
    figure = new_figure(6.0, 4.0)
    axis = figure.add_subplot()
    for place, one in enumerate(found.standings):
        colour = INK if place == 0 else FAINT
        x, y = (error_bar(each.mean, each.ci95) for each in (one.qos_percent, one.be_percent))
        point = (one.qos_percent.mean, one.be_percent.mean)
        axis.errorbar(*point, yerr=y, xerr=x, fmt="o", color=colour, elinewidth=0.8, markersize=4)
        axis.annotate(one.name, point, (4, 4), textcoords="offset points", fontsize=7, color=colour)
    axis.set_xlabel("QoS, % of windows that held the target")
    axis.set_ylabel("BE throughput, % of running alone")
    path.write_bytes(png(figure))
