"""A search of `rlctl tune` in its folder: what it goes on from, and `history.json`, what came of it.

search.json                            what was asked for, with a digest of what is searched
space.json config.json hosts.json      the files that it follows from, as they were
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rlctl.agents.training.evaluations import ALLOWANCE_POINTS, METRICS, Evaluation, search_score, shortfall_steps
from rlctl.agents.training.host_kinds import SEED_BITS
from rlctl.agents.training.recipe import as_document, load_recipe
from rlctl.agents.training.search.job import Job
from rlctl.agents.training.search.space import load_space
from rlctl.bench.comparison import Difference, paired_difference
from rlctl.envs.errors import ConfigError
from rlctl.envs.whole_file import write_whole
from rlctl.envs.yaml_edge import load_model
from rlctl.learn.plan import RunOptions, TrainingOptions, new_plan
from rlctl.report.page import render

if TYPE_CHECKING:
    from rlctl.agents.training.search.tuner import TrialEnd

SEARCH, HISTORY = "search.json", "history.json"
COPIES = {"space": "space.json", "config": "config.json", "hosts": "hosts.json"}


class SearchOptions(RunOptions):
    """What `rlctl tune` is asked for; the seed is that of the searcher and of the first trial.

    Attributes:
        space: A file, or None for the one that ships.
        digest: Of what is searched, once it was begun.
    """

    space: str | None = None
    scheduler: Literal["asha", "none"] = "asha"
    trials: int = Field(16, ge=2, le=1000)
    digest: str = ""


def new_search(options: SearchOptions, out: Path) -> Job:
    """The job of a new search; a ConfigError comes before anything is started."""
    if options.seed + options.trials > 1 << SEED_BITS:
        most = (1 << SEED_BITS) - options.trials
        raise ConfigError(f"--seed {options.seed}: each trial has the next one; give {most} at most")
    recipe = load_recipe(options.algorithm, Path(options.config) if options.config else None)
    timesteps = options.total_timesteps or recipe.n_timesteps
    asked = {name: getattr(options, name) for name in RunOptions.model_fields} | {"total_timesteps": timesteps}
    run = replace(new_plan(TrainingOptions(**asked)).run, recipe=recipe, folder=out)
    space = load_space(options.algorithm, recipe, Path(options.space) if options.space else None)
    return Job(space, options.trials, run, timesteps, options.scheduler)


def resumed_search(out: Path) -> tuple[SearchOptions, Job]:
    """A search that goes on, from its folder; ConfigError where there is none."""
    file = out / SEARCH
    if not file.is_file():
        raise ConfigError(f"holds no search: there is no {SEARCH}; leave out --resume to begin one", out)
    options = load_model(SearchOptions, file)
    return options, new_search(options.model_copy(update={key: str(out / name) for key, name in COPIES.items()}), out)


def check_new(out: Path) -> None:
    """Raise ConfigError where a folder holds a search already."""
    if (out / SEARCH).exists():
        raise ConfigError("holds a search already; --resume goes on with it, or give another --out", out)


def begin(options: SearchOptions, job: Job) -> None:
    """Make the folder of a new search; ConfigError where there is one already."""
    check_new(job.run.folder)
    drawn = {key: one.model_dump(mode="json", exclude_none=True) for key, one in job.space.draws.items()}
    contents = {
        "space": {"algorithm": job.run.algorithm, "recipe": drawn},
        "config": as_document(job.run.recipe),
        "hosts": job.run.hosts.model_dump(mode="json"),
    }
    for key, content in contents.items():
        write_whole(job.run.folder / COPIES[key], json.dumps(content, indent=1) + "\n")
    write_whole(
        job.run.folder / SEARCH, options.model_copy(update={"digest": job.space.digest}).model_dump_json() + "\n"
    )


def ranked(scores: Mapping[str, Evaluation]) -> list[str]:
    """Names of trials, the winner first: the smallest shortfall in steps, then the most BE throughput."""
    return sorted(
        scores, key=lambda name: (-search_score(scores[name].shortfall_points, scores[name].mean("be_percent")), name)
    )


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """A search that has come to its end.

    Attributes:
        scores: Of the trials that did not fail, on seeds that no trial has seen; the winner first.
    """

    options: SearchOptions
    job: Job
    trials: Sequence[TrialEnd]
    scores: Mapping[str, Evaluation]

    def difference(self, metric: str) -> Difference | None:
        """The winner's metric less the runner-up's, seed by seed; None where there is none."""
        if len(self.scores) < 2:
            return None
        first, second = list(self.scores.values())[:2]
        return paired_difference(_by_seed(first, metric), _by_seed(second, metric))

    def as_json(self) -> dict[str, Any]:
        """As `history.json` has it."""
        ahead = {metric: self.difference(metric) for metric in METRICS[:2]}
        return {
            "schema": 2,
            "search": self.options.model_dump(mode="json") | {"digest": self.job.space.digest},
            "choice": {
                "seeds": list(self.job.choice_seeds),
                "allowance_points": ALLOWANCE_POINTS,
                "winner": next(iter(self.scores)),
                "ahead": {metric: one.as_json() for metric, one in ahead.items() if one},
            },
            "trials": [self._trial(one) for one in self.trials],
        }

    def _trial(self, one: TrialEnd) -> dict[str, Any]:
        score, last = self.scores.get(one.name), one.reports[-1] if one.reports else {}
        return {
            "name": one.name,
            "place": list(self.scores).index(one.name) + 1 if score else None,
            "seed": self.job.run.seed + one.number,
            "values": dict(one.values),
            "timesteps": int(last.get("timesteps", 0)),
            "seconds": round(last.get("seconds", 0.0), 1),
            "stopped_by": one.stopped_by or None,
            "error": one.error or None,
            **{metric: round(score.mean(metric), 4) if score else None for metric in METRICS},
            "shortfall_points": round(score.shortfall_points, 4) if score else None,
            "reports": [dict(line) for line in one.reports],
        }

    def tables(self) -> str:
        """Scores of all trials, the winner first, and their values."""
        ends = {one.name: one for one in self.trials}
        names = [*self.scores, *(name for name in ends if name not in self.scores)]
        keys = list(self.job.space.base)
        rows: list[tuple[str, ...]] = [("", "trial", "QoS %", "BE %", "override %", "short", "timesteps", "ended")]
        values: list[tuple[str, ...]] = [("trial", *keys)]
        for place, name in enumerate(names, 1):
            one = self._trial(ends[name])
            cells = ("",) * 4
            if score := self.scores.get(name):
                qos, be, override = map(score.mean, METRICS)
                cells = (f"{qos:.2f}", f"{be:.1f}", f"{override:.1f}", f"{score.shortfall_points:.2f}")
            rows.append((str(place) if score else "", name, *cells, f"{one['timesteps']:,}", ends[name].ending))
            values.append((name, *(_plain(one["values"].get(key, "")) for key in keys)))
        return f"{render(rows)}\n\n{render(values)}"

    def summary(self) -> str:
        """How far ahead the winner is, seed by seed."""
        qos, be = map(self.difference, METRICS[:2])
        if not qos or not be:
            return "one trial came to its end: there is nothing to compare it with"
        first, second = list(self.scores)[:2]
        steps = {shortfall_steps(self.scores[name].shortfall_points) for name in (first, second)}
        by = be if len(steps) == 1 else qos
        return (
            f"{first} is ahead of {second}, {'clearly' if by.mean > 0.0 and by.is_clear else 'not clearly'}: "
            f"QoS {qos.mean:+.2f} points [{qos.t95[0]:+.2f}, {qos.t95[1]:+.2f}], "
            f"BE {be.mean:+.1f} points [{be.t95[0]:+.2f}, {be.t95[1]:+.2f}]"
        )


def _by_seed(score: Evaluation, metric: str) -> NDArray[np.float64]:
    """Mean over the courses, shape (seeds,)."""
    return np.asarray(np.mean([getattr(one, metric) for one in score.trials.values()], axis=0))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
