"""A search of `rlctl tune` in its folder: `search.json`, which it goes on from, and `history.json`, what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rlctl.agents.training.evaluations import ALLOWANCE_POINTS
from rlctl.agents.training.host_kinds import SEED_BITS, Hosts
from rlctl.agents.training.recipe import ALGORITHMS, Recipe, load_recipe
from rlctl.agents.training.search.job import Job
from rlctl.agents.training.search.space import Space, SpaceFile, load_space, space_of
from rlctl.bench.sim_scenario import CAPPED, SUITE
from rlctl.envs.errors import ConfigError
from rlctl.envs.whole_file import write_whole
from rlctl.envs.yaml_edge import Strict, load_model, validate
from rlctl.report.page import render
from rlctl.report.table import percent
from rlctl.safety.profile import DEFAULT
from rlctl.training.plan import TrainingOptions, new_plan
from rlctl.training.search_ranking import TrialRanking

if TYPE_CHECKING:
    from rlctl.agents.training.search.tuner import TrialEnd

SEARCH, HISTORY = "search.json", "history.json"


class SearchOptions(Strict):
    """What the user asked for.

    Attributes:
        algorithm, config, hosts, scenarios, total_timesteps, max_seconds: As of `TrainingOptions`, for each trial.
        space: A file, or None for the one that ships.
        seed: Seed of the searcher and of the first trial.
    """

    algorithm: str
    space: str | None = None
    scheduler: Literal["asha", "none"] = "asha"
    trials: int = Field(16, ge=2, le=1000)
    seed: int = Field(0, ge=0)
    config: str | None = None
    hosts: str | None = None
    scenarios: tuple[str, ...] = (*SUITE, *CAPPED)
    total_timesteps: int | None = None
    max_seconds: float | None = None


class SearchFile(Strict):
    """`search.json`: all that a search that goes on must not take from elsewhere, and a digest of what is searched."""

    schema_version: Literal[1] = Field(1, alias="schema")
    asked: SearchOptions
    space: SpaceFile
    digest: str
    recipe: dict[str, Any]
    hosts: Hosts


def search_file(options: SearchOptions, job: Job) -> dict[str, Any]:
    """A search as `search.json` has it."""
    content = SearchFile(
        schema=1,
        asked=options,
        space=job.space.document,
        digest=job.space.digest,
        recipe=job.recipe.model_dump(mode="json"),
        hosts=job.hosts,
    )
    return content.model_dump(mode="json", by_alias=True)


def new_search(options: SearchOptions, out: Path) -> Job:
    """The job of a new search; a ConfigError comes before anything is started."""
    if options.seed + options.trials > 1 << SEED_BITS:
        most = (1 << SEED_BITS) - options.trials
        raise ConfigError(f"--seed {options.seed}: each trial has the next one; give {most} at most")
    recipe = load_recipe(options.algorithm, Path(options.config) if options.config else None)
    space = load_space(options.algorithm, recipe, Path(options.space) if options.space else None)
    return _job(options, space, recipe, None, out)


def resumed_search(out: Path) -> tuple[SearchOptions, Job]:
    """A search that goes on, from its folder.

    Raises:
        ConfigError: There is no search, or the shield that it tightens was changed.
    """
    file = out / SEARCH
    if not file.is_file():
        raise ConfigError(f"holds no search: there is no {SEARCH}; leave out --resume to begin one", out)
    stored = load_model(SearchFile, file)
    recipe: Recipe = validate(ALGORITHMS[stored.asked.algorithm], stored.recipe, str(file))
    space = space_of(stored.space, stored.asked.algorithm, recipe, str(file))
    if space.digest != stored.digest:
        raise ConfigError("the safety profile that its margins tighten was changed since; give another --out", out)
    # What the files of --config and --hosts said stands in search.json.
    options = stored.asked.model_copy(update={"config": None, "hosts": None})
    return stored.asked, _job(options, space, recipe, stored.hosts, out)


def _job(options: SearchOptions, space: Space, recipe: Recipe, hosts: Hosts | None, out: Path) -> Job:
    timesteps = options.total_timesteps or recipe.n_timesteps
    shared = ("algorithm", "config", "hosts", "seed", "max_seconds", "scenarios")
    shield = space.document.shield.profile if space.document.shield else DEFAULT
    asked = {name: getattr(options, name) for name in shared}
    run = new_plan(TrainingOptions(shield=shield, total_timesteps=timesteps, **asked)).run
    return Job(
        algorithm=options.algorithm,
        space=space,
        trials=options.trials,
        recipe=recipe,
        hosts=hosts or run.hosts,
        courses=run.courses,
        validation_seeds=run.validation_seeds,
        timesteps=timesteps,
        max_seconds=options.max_seconds,
        scheduler=options.scheduler,
        seed=options.seed,
        out=out,
        arguments=run.arguments,
    )


def check_new(out: Path) -> None:
    """Raise ConfigError where a folder holds a search already."""
    if (out / SEARCH).exists():
        raise ConfigError("holds a search already; --resume goes on with it, or give another --out", out)


def begin(options: SearchOptions, job: Job) -> None:
    """Make the folder of a new search; ConfigError where there is one already."""
    check_new(job.out)
    write_whole(job.out / SEARCH, json.dumps(search_file(options, job), indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """A search that has come to its end.

    Attributes:
        search: As `search_file` has it.
        rankings: Of the trials that did not fail, the winner first.
        as_shipped: The winner without its margins; None where none was searched.
    """

    search: dict[str, Any]
    job: Job
    trials: Sequence[TrialEnd]
    rankings: Sequence[TrialRanking]
    as_shipped: TrialRanking | None

    @property
    def lead(self) -> dict[str, Any] | None:
        """The winner against the runner-up; None where there is none."""
        return self.rankings[0].lead_over(self.rankings[1]) if len(self.rankings) > 1 else None

    def as_json(self) -> dict[str, Any]:
        """As `history.json` has it."""
        return {
            "schema": 1,
            "search": self.search,
            "choice": {
                "seeds": list(self.job.choice_seeds),
                "allowance_points": ALLOWANCE_POINTS,
                "winner": self.rankings[0].name,
                "ahead": self.lead,
                "winner_under_the_shield_as_it_ships": self.as_shipped.as_json() if self.as_shipped else None,
            },
            "trials": [self._trial(one) for one in self.trials],
        }

    def _trial(self, one: TrialEnd) -> dict[str, Any]:
        places = {ranking.name: place for place, ranking in enumerate(self.rankings)}
        place = places.get(one.name)
        unknown = dict.fromkeys(("qos_percent", "be_percent", "override_percent", "shortfall_points"))
        return {
            "name": one.name,
            "place": None if place is None else place + 1,
            "seed": self.job.seed + one.number,
            "values": dict(one.values),
            "timesteps": one.timesteps,
            "seconds": round(one.seconds, 1),
            "stopped_by": one.stopped_by or None,
            "error": one.error or None,
            **(unknown if place is None else self.rankings[place].as_json()),
            "reports": [dict(line) for line in one.reports],
        }

    def tables(self) -> str:
        """Scores of all trials, the winner first, and their values."""
        by_name = {one.name: one for one in self.trials}
        rows: list[tuple[str, ...]] = [("", "trial", "QoS %", "95 %", "BE %", "95 %", "short", "timesteps", "ended")]
        for place, one in enumerate(self.rankings, 1):
            qos, be, end = one.qos_percent, one.be_percent, by_name[one.name]
            scores = (
                percent(qos.mean, 2),
                f"{qos.ci95[0]:.2f} to {qos.ci95[1]:.2f}",
                f"{be.mean:.1f}",
                f"{be.ci95[0]:.1f} to {be.ci95[1]:.1f}",
                f"{one.shortfall_points:.2f}",
            )
            rows.append((str(place), one.name, *scores, f"{end.timesteps:,}", end.ending))
        ranked = {one.name for one in self.rankings}
        failed = [one for one in self.trials if one.name not in ranked]
        rows += [("", one.name, *("",) * 5, f"{one.timesteps:,}", one.ending) for one in failed]
        keys = list(self.job.space.base)
        values: list[tuple[str, ...]] = [("trial", *(key.removeprefix("shield.") for key in keys))]
        names = [*(one.name for one in self.rankings), *(one.name for one in failed)]
        values += [(name, *(_plain(by_name[name].values.get(key, "")) for key in keys)) for name in names]
        return f"{render(rows)}\n\n{render(values)}"

    def summary(self) -> list[str]:
        """What the tables do not say: how far ahead the winner is, and what its margins do."""
        winner, lines = self.rankings[0], []
        if lead := self.lead:
            clear = "clearly" if lead["clear"] else "not clearly"
            ahead = f"ahead of {lead['other']} in {lead['by']}, {clear}"
            if lead["by"] == "nothing":
                ahead = f"level with {lead['other']}"
            qos, be = (winner.difference(self.rankings[1], metric) for metric in ("qos_percent", "be_percent"))
            lines.append(
                f"{winner.name} is {ahead}: QoS {qos.mean:+.2f} points [{qos.t95[0]:+.2f}, {qos.t95[1]:+.2f}], "
                f"BE {be.mean:+.1f} points [{be.t95[0]:+.2f}, {be.t95[1]:+.2f}]"
            )
        if self.as_shipped:
            qos_mean, be_mean = self.as_shipped.qos_percent.mean, self.as_shipped.be_percent.mean
            lines.append(
                "its margins are a proposal, winner/shield.yaml; under the shield as it ships it has "
                f"QoS {qos_mean:.2f} %, BE {be_mean:.1f} %"
            )
        return lines


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
