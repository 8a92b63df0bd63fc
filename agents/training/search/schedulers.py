"""Schedulers of a search that know, when it goes on, where its trials were; and the journal that tells them.

Ray keeps no scheduler's state, so what trials had reported before is taken from the journal and from the trials.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler

from rlctl.agents.training import run_folder as files
from rlctl.agents.training.search.job import EVALUATIONS, GENERATIONS, REDUCTION, Job
from rlctl.agents.training.search.space import Space

REPLAYS = 2
"""Checkpoints of a trial that keep their replay buffer: one that is being written is no use."""

FIXED = frozenset({"policy_kwargs", "lags", "n_envs"})
"""Keys that weights or environments depend on: population-based training copies them and changes the others."""

TRIALS, REPORTS = "trials", "reports.jsonl"

Told = Callable[[str], None]


class Journal(tune.Callback):
    """Every report of every trial as a line of reports.jsonl, and a word for whoever watches when a trial ends.

    Ray pickles its callbacks with a search and takes them back from there when it goes on. So where to write and whom
    to tell are the class', set while a search runs.
    """

    file: ClassVar[Path]
    told: ClassVar[Told]

    def on_trial_result(self, *, trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Write the report down."""
        keys = ("timesteps", "seconds", "score", "shortfall_points", "qos_percent", "be_percent")
        line = {
            "trial": str(trial),
            **{key: result[key] for key in keys},
            "values": result["config"]["drawn"]["values"],
        }
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def on_checkpoint(self, *, checkpoint: Any, **_: Any) -> None:
        """Drop the replay buffers of all but the newest two; what else a checkpoint holds is small.

        Ray would remove whole checkpoints, and after a kill its state may still point to one that it removed.
        """
        newest = Path(checkpoint.path)
        for older in sorted(newest.parent.glob("checkpoint_*"))[:-REPLAYS]:
            for replay in older.glob(f"checkpoints/*/{files.REPLAY}"):
                replay.unlink(missing_ok=True)

    def on_trial_complete(self, *, trial: Any, **_: Any) -> None:
        """Say what it came to."""
        last = trial.last_result or {}
        if "qos_percent" in last:
            said = f"QoS {last['qos_percent']:.2f} %, BE {last['be_percent']:.1f} % at {last['timesteps']:,} timesteps"
            type(self).told(f"{trial}: {said}")

    def on_trial_error(self, *, trial: Any, **_: Any) -> None:
        """Say that it failed."""
        type(self).told(f"{trial}: failed, see {self.file.parent / TRIALS / str(trial)}/error.txt")


class Asha(ASHAScheduler):
    """ASHA that knows again, when a search goes on, what trials had reached their rungs with."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """As Ray's; a trial that has reported already has its place in each rung."""
        super().on_trial_add(tune_controller, trial)
        reached = (trial.last_result or {}).get(self._time_attr, 0)
        for line in reports(Journal.file):
            if line["trial"] == str(trial) and line[self._time_attr] <= reached:
                self.on_trial_result(tune_controller, trial, line)


class Pbt(PopulationBasedTraining):
    """Population-based training that knows again, when a search goes on, in which generation each trial is."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """As Ray's; a trial that has reported already counts as having done so."""
        super().on_trial_add(tune_controller, trial)
        last, length = trial.last_result or {}, self._perturbation_interval
        if self._time_attr not in last:
            return
        state = self._trial_state[trial]
        self._save_trial_state(state, last[self._time_attr], last, trial)
        state.last_perturbation_time = last[self._time_attr] // length * length
        behind = min(one.last_train_time for other, one in self._trial_state.items() if not other.is_finished())
        self._next_perturbation_sync = (behind // length + 1) * length


def explorer(space: Space, seed: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that changes the values of a trial that was copied, within the space."""
    random = np.random.default_rng(seed)

    def explore(config: dict[str, Any]) -> dict[str, Any]:
        drawn = config["drawn"]
        return {"drawn": {**drawn, "values": space.near(drawn["values"], random, FIXED)}}

    return explore


def scheduler_of(job: Job) -> TrialScheduler:
    """The one that was asked for."""
    clock, most = job.clock
    if job.scheduler == "asha":
        return Asha(time_attr=clock, max_t=most, grace_period=most / EVALUATIONS, reduction_factor=REDUCTION)
    if job.scheduler == "pbt":
        return Pbt(
            time_attr=clock,
            perturbation_interval=most / GENERATIONS,
            custom_explore_fn=explorer(job.space, job.seed),
            log_config=False,
            synch=True,
        )
    return FIFOScheduler()


def reports(file: Path) -> Iterator[dict[str, Any]]:
    """What trials reported, in order; a line that a kill cut off is left out."""
    if not file.is_file():
        return
    for line in file.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def _end_cut_line(file: Path) -> None:
    """What a kill cut off must not swallow the line after it."""
    if file.is_file() and not file.read_bytes().endswith(b"\n"):
        with file.open("a") as open_file:
            open_file.write("\n")


@contextmanager
def journal(file: Path, told: Told) -> Iterator[None]:
    """While it is open, trials' reports go to a file, and words to whoever watches."""
    _end_cut_line(file)
    Journal.file, Journal.told = file, staticmethod(told)
    yield
