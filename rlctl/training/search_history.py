"""What came of a search: history.json with everything, trials.csv with a row per trial, a table, a figure."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.agents.training.evaluations import ALLOWANCE_POINTS
from rlctl.agents.training.search.objective import RESOLUTION_POINTS
from rlctl.envs.whole_file import write_whole
from rlctl.report.figures import FAINT, INK, new_figure, png
from rlctl.report.table import render
from rlctl.training.search_choice import Lead, Standing

if TYPE_CHECKING:
    from rlctl.agents.training.search.run import Ended
    from rlctl.training.search_plan import SearchPlan

__all__ = ["HISTORY", "Found", "document", "tables", "verdict", "write"]

HISTORY, TRIALS, FIGURE = "history.json", "trials.csv", "search.png"


@dataclass(frozen=True, slots=True)
class Found:
    """A search that has come to its end.

    Attributes:
        plan: What was searched.
        ended: All trials, in the order in which they were drawn.
        standings: Those that did not fail, the winner first.
        lead: The winner against the runner-up, if there is one.
        as_shipped: The winner without its margins; None where none was searched.
        seeds: On which it was chosen.
        reports: What trials reported while they ran, in order.
        lineage: By trial, whose weights it had since when.
        place: Address of the cluster.
    """

    plan: SearchPlan
    ended: Sequence[Ended]
    standings: Sequence[Standing]
    lead: Lead | None
    as_shipped: Standing | None
    seeds: Sequence[int]
    reports: Sequence[Mapping[str, Any]]
    lineage: Mapping[str, Sequence[Mapping[str, Any]]]
    place: str

    def place_of(self, name: str) -> int | None:
        """Of a trial; None where it failed."""
        names = [one.name for one in self.standings]
        return names.index(name) + 1 if name in names else None


def document(found: Found) -> dict[str, Any]:
    """As history.json has it."""
    plan, by_name = found.plan, {one.name: one for one in found.standings}
    return {
        "schema": 1,
        "search": plan.as_file() | {"ray": found.place},
        "choice": {
            "seeds": list(found.seeds),
            "allowance_points": ALLOWANCE_POINTS,
            "resolution_points": RESOLUTION_POINTS,
            "winner": found.standings[0].name if found.standings else None,
            "ahead": found.lead.as_json() if found.lead else None,
            "winner_under_the_shield_as_it_ships": _scores(found.as_shipped) if found.as_shipped else None,
        },
        "trials": [
            {
                "name": one.candidate.name,
                "place": found.place_of(one.candidate.name),
                "seed": one.candidate.seed,
                "values": dict(one.values),
                "timesteps": one.timesteps,
                "seconds": round(one.seconds, 1),
                "stopped_by": one.stopped_by or None,
                "error": one.error or None,
                **_scores(by_name.get(one.candidate.name)),
                "lineage": list(found.lineage.get(one.candidate.name, ())),
                "reports": [dict(line) for line in found.reports if line["trial"] == one.candidate.name],
            }
            for one in found.ended
        ],
    }


def _scores(one: Standing | None) -> dict[str, Any]:
    if one is None:
        return {"qos_percent": None, "be_percent": None, "override_percent": None, "shortfall_points": None}
    return {
        "qos_percent": one.qos_percent.as_json(),
        "be_percent": one.be_percent.as_json(),
        "override_percent": round(one.override_percent, 4),
        "shortfall_points": round(one.shortfall_points, 4),
    }


def tables(found: Found) -> str:
    """Scores of all trials, the winner first, and what they had."""
    by_name = {one.candidate.name: one for one in found.ended}
    names = [one.name for one in found.standings] + [name for name in by_name if found.place_of(name) is None]
    scores: list[tuple[str, ...]] = [("", "trial", "QoS %", "95 %", "BE %", "95 %", "short", "timesteps", "ended")]
    scores += [_row(found, by_name[name]) for name in names]
    keys = list(found.plan.space.base)
    values: list[tuple[str, ...]] = [("trial", *(key.removeprefix("shield.") for key in keys))]
    values += [(name, *(_plain(by_name[name].values[key]) for key in keys)) for name in names]
    return f"{render(scores)}\n\n{render(values)}"


def _row(found: Found, one: Ended) -> tuple[str, ...]:
    place = found.place_of(one.candidate.name)
    ended = _ended(one)
    if place is None:
        return ("", one.candidate.name, "", "", "", "", "", f"{one.timesteps:,}", ended)
    standing = found.standings[place - 1]
    qos, be = standing.qos_percent, standing.be_percent
    return (
        str(place),
        standing.name,
        f"{qos.mean:.2f}",
        f"{qos.ci95[0]:.2f} to {qos.ci95[1]:.2f}",
        f"{be.mean:.1f}",
        f"{be.ci95[0]:.1f} to {be.ci95[1]:.1f}",
        f"{standing.shortfall_points:.2f}",
        f"{one.timesteps:,}",
        ended,
    )


def _ended(one: Ended) -> str:
    if one.error:
        return f"failed: {one.error}"
    return f"stopped by {one.stopped_by}" if one.stopped_by else "budget spent"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def verdict(found: Found) -> list[str]:
    """What the tables do not say: how far ahead the winner is, and what its margins do."""
    winner, said = found.standings[0], []
    if found.lead:
        one = found.lead
        clear = "clearly" if one.is_clear else "not clearly"
        ahead = f"ahead of {one.other} in {one.by}, {clear}" if one.by != "nothing" else f"level with {one.other}"
        said.append(
            f"{winner.name} is {ahead}: QoS {one.qos.mean:+.2f} points {_ends(one.qos.t95)}, "
            f"BE {one.be.mean:+.1f} points {_ends(one.be.t95)}"
        )
    if found.as_shipped:
        qos, be = found.as_shipped.qos_percent.mean, found.as_shipped.be_percent.mean
        said.append(
            f"its margins are a proposal, winner/shield.yaml; under the shield as it ships it has QoS {qos:.2f} %, "
            f"BE {be:.1f} %"
        )
    return said


def _ends(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:+.2f}, {interval[1]:+.2f}]"


def write(found: Found, out: Path) -> list[str]:
    """Write history.json, trials.csv and, with matplotlib, search.png.

    Args:
        found: The search.
        out: Its folder.

    Returns:
        What its reader must know.
    """
    write_whole(out / HISTORY, json.dumps(document(found), indent=1) + "\n")
    keys = list(found.plan.space.base)
    header = ("place", "trial", "seed", "qos_percent", "be_percent", "shortfall_points", "timesteps", "seconds")
    with (out / TRIALS).open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*header, "ended", *keys])
        for one in found.ended:
            place = found.place_of(one.candidate.name)
            standing = found.standings[place - 1] if place else None
            means = (standing.qos_percent.mean, standing.be_percent.mean) if standing else ("", "")
            short = round(standing.shortfall_points, 4) if standing else ""
            told = (place or "", one.candidate.name, one.candidate.seed, *means, short, one.timesteps, one.seconds)
            rows.writerow([*told, _ended(one), *(one.values[key] for key in keys)])
    return [] if _draw(found, out / FIGURE) else ["no figure: matplotlib is not installed (pip install 'rlctl[cli]')"]


def _draw(found: Found, path: Path) -> bool:
    """BE over QoS, a point per trial; False without matplotlib."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        return False
    figure = new_figure(6.0, 4.0)
    axis = figure.add_subplot()
    for place, one in enumerate(found.standings):
        qos, be = one.qos_percent, one.be_percent
        colour = INK if place == 0 else FAINT
        x = [[max(qos.mean - qos.ci95[0], 0.0)], [max(qos.ci95[1] - qos.mean, 0.0)]]
        y = [[max(be.mean - be.ci95[0], 0.0)], [max(be.ci95[1] - be.mean, 0.0)]]
        axis.errorbar(qos.mean, be.mean, yerr=y, xerr=x, fmt="o", color=colour, elinewidth=0.8, markersize=4)
        axis.annotate(one.name, (qos.mean, be.mean), (4, 4), textcoords="offset points", fontsize=7, color=colour)
    axis.set_xlabel("QoS, % of windows that held the target")
    axis.set_ylabel("BE throughput, % of running alone")
    path.write_bytes(png(figure))
    return True
