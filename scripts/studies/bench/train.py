"""How fast `rlctl train` learns: steps a second, and seconds from nothing to the scores of `feedforward` and `ppo`.

One run of one process, in this machine's state. Every --every timesteps the policy as it is runs on every simulated
scenario in full length, behind the default shield, on evaluation seeds, by the metrics of `rlctl bench`. Neither these
trials nor what writes the model down count in the seconds; what compiles before the first step does. It has one thread:
where the machine has nothing else to do, the wall clock's seconds are those of CPU time.

With --merged a run learns on each CPU for so long, and the policy is their mean, as the one that ships is. Its seconds
are all that went by, from the first process to the bundle.

The score of a scenario is what learners are compared by: BE % less 100 for every point of QoS below that of `frozen`
less 0.1. `feedforward` has its tuned constants, which are the published ones. A scenario is reached where a score is no
more than 0.5 below: on the large hosts the shield alone decides, so that policies can only be equal. A policy is above
one whose scenarios it has reached once the mean of its scores is higher, too.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlctl.agents.batch_policies import batch_policy
from rlctl.agents.served.merge import merge
from rlctl.agents.training.evaluations import ALLOWANCE_POINTS, PRICE, Evaluation
from rlctl.agents.training.host_kinds import validation_seed
from rlctl.agents.training.run_folder import MODEL, newest_checkpoint
from rlctl.agents.training.training_run import TrainingStatus
from rlctl.agents.training.trial import Course, Trial, frozen, score, score_policy
from rlctl.bench.scenarios import sim_scenario
from rlctl.bench.sim_scenario import JUDGED
from rlctl.commands.options import positive_int
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.sim.seeds import evaluation
from rlctl.learn.plan import TrainingOptions, course_of, new_plan
from rlctl.log.progress import say
from rlctl.report.page import render
from rlctl.safety.profile import DEFAULT, load_profile
from scripts.studies.jobs import TrainingJob, train

YARDSTICKS = ("feedforward", "ppo")
EQUAL_POINTS = 0.5
"""Of a score: BE that two policies differ by where the shield decides for both."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--config", metavar="FILE", help="recipe of PPO (default: configs/training/ppo.yaml)")
    parser.add_argument("--hosts", metavar="FILE", help="hosts to learn on (default: configs/training/hosts.yaml)")
    parser.add_argument("--total-timesteps", type=positive_int, default=6_000_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--merged", type=positive_int, metavar="SECONDS", help="a run on each CPU, of the recipe's own")
    parser.add_argument("--every", type=positive_int, default=1_000_000, metavar="N", help="timesteps between trials")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the run (%(default)s)")
    parser.add_argument("--seeds", type=positive_int, default=10, metavar="N", help="of each trial (%(default)s)")
    parser.add_argument("--validation", action="store_true", help="trials on validation seeds: to choose recipes by")
    parser.add_argument("--stop", choices=YARDSTICKS, help="end once a policy is above this one")


class Scores:
    """Scores of policies by scenario; `frozen` says what QoS must be held."""

    def __init__(self, courses: Sequence[Course], seeds: Sequence[int]) -> None:
        self.courses, self.seeds = courses, seeds
        held = {course.name: frozen(course, seeds).qos_percent.mean() for course in courses}
        self._least = {name: qos_percent - ALLOWANCE_POINTS for name, qos_percent in held.items()}

    def of_manager(self, name: str) -> dict[str, dict[str, float]]:
        """QoS, BE and score of a manager or bundle, by scenario."""
        found = {}
        for course in self.courses:
            limits = VectorLimits([course.host.limits(course.weight)] * len(self.seeds))
            policy = batch_policy(name, limits, course.tick_seconds)
            found[course.name] = self._row(course, score_policy(course, policy, self.seeds))
        return found

    def of_model(self, model: Any, lags: Sequence[int]) -> dict[str, dict[str, float]]:
        """The same of a learner's model."""
        from rlctl.agents.training.algorithms import logits_of

        logits = logits_of(model)
        return {one.name: self._row(one, score(one, logits, self.seeds, lags)) for one in self.courses}

    def _row(self, course: Course, trial: Trial) -> dict[str, float]:
        qos_percent, be_percent = float(trial.qos_percent.mean()), float(trial.be_percent.mean())
        value = be_percent - PRICE * max(self._least[course.name] - qos_percent, 0.0)
        return {"qos_percent": qos_percent, "be_percent": be_percent, "score": value}


def mean_score(rows: dict[str, dict[str, float]]) -> float:
    """Mean of the scores over all scenarios."""
    return sum(row["score"] for row in rows.values()) / len(rows)


def is_above(rows: dict[str, dict[str, float]], others: dict[str, dict[str, float]]) -> bool:
    """Whether a policy has reached another one in every scenario, and is above it in the mean."""
    return not behind_in(rows, others) and mean_score(rows) > mean_score(others)


def has_mean(rows: dict[str, dict[str, float]], others: dict[str, dict[str, float]]) -> bool:
    """Whether a policy is as good as another one in the mean over the scenarios."""
    return mean_score(rows) >= mean_score(others)


def behind_in(rows: dict[str, dict[str, float]], others: dict[str, dict[str, float]]) -> list[str]:
    """Scenarios in which a policy has not reached another one."""
    return [name for name, row in rows.items() if row["score"] < others[name]["score"] - EQUAL_POINTS]


class Stopwatch:
    """Wall-clock and CPU seconds of the learning, without what is paused."""

    def __init__(self) -> None:
        self._begun, self._since = self._now(), (0.0, 0.0)
        self.running = True

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), time.process_time()

    @property
    def seconds(self) -> tuple[float, float]:
        """Wall-clock and CPU seconds so far."""
        if not self.running:
            return self._since
        wall, cpu = self._now()
        return wall - self._begun[0], cpu - self._begun[1]

    def pause(self) -> None:
        """Stop counting until `go_on`."""
        self._since, self.running = self.seconds, False

    def go_on(self) -> None:
        """Count on from where it was paused."""
        if self.running:
            return
        (wall, cpu), (had_wall, had_cpu) = self._now(), self._since
        self._begun, self.running = (wall - had_wall, cpu - had_cpu), True


def run(asked: argparse.Namespace) -> tuple[Any, int]:
    """Score the yardsticks, learn, and score what is learned."""
    courses = [course_of(sim_scenario(name), load_profile(DEFAULT)) for name in JUDGED]
    kind = validation_seed if asked.validation else evaluation
    scores = Scores(courses, [kind(number) for number in range(asked.seeds)])
    yardsticks = {name: scores.of_manager(name) for name in YARDSTICKS}
    for name, rows in yardsticks.items():
        say(f"{name}: {_line(rows)}")
    points = [merged(asked, scores)] if asked.merged else learned(asked, scores, yardsticks)
    print(render(_table(yardsticks, points)))
    print("QoS % of windows / BE % of running alone; seconds of learning alone")
    reached: dict[str, Any] = {}
    for name, others in yardsticks.items():
        for what, holds in (("above", is_above), ("the mean score of", has_mean)):
            first = next((point for point in points if holds(point["scenarios"], others)), None)
            spent = first and {key: first[key] for key in ("timesteps", "wall_seconds", "cpu_seconds")}
            reached[f"{what} {name}"] = spent
            told = (
                f"{spent['wall_seconds']:.0f} s ({spent['cpu_seconds']:.0f} s of CPU time)" if spent else "not reached"
            )
            print(f"from nothing to {what} {name}: {told}")
        if behind := behind_in(points[-1]["scenarios"], others):
            print(f"at the end behind {name} in {', '.join(behind)}")
    last = points[-1]
    rates = {key: last["timesteps"] / last[f"{key}_seconds"] for key in ("wall", "cpu")}
    print(f"{rates['wall']:,.0f} steps a second, {rates['cpu']:,.0f} a second of CPU time")
    return {"yardsticks": yardsticks, "curve": points, "from_nothing": reached, "steps_per_second": rates}, 0


def learned(asked: argparse.Namespace, scores: Scores, yardsticks: dict[str, Any]) -> list[dict[str, Any]]:
    """The points of the curve."""
    from rlctl.agents.training.learn import learn
    from rlctl.agents.training.sb3_model import load_model

    options = TrainingOptions(
        algorithm="ppo", config=asked.config, hosts=asked.hosts, seed=asked.seed, total_timesteps=asked.total_timesteps
    )
    plan = new_plan(options)
    recipe = plan.run.recipe.model_copy(update={"eval_every_timesteps": asked.every, "eval_every_seconds": None})
    points: list[dict[str, Any]] = []
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        # The run's own trials decide nothing here: one, as short as can be.
        run = replace(
            plan.run, recipe=recipe, folder=Path(folder) / "run", export=False, validation_seeds=1,
            courses=(replace(plan.run.courses[0], ticks=2),),
        )  # fmt: skip

        def note(told: TrainingStatus) -> None:
            (watch.pause if told.activity else watch.go_on)()

        def evaluated(now: Evaluation) -> None:
            watch.pause()
            wall, cpu = watch.seconds
            rows = scores.of_model(load_model(newest_checkpoint(run.folder).folder / MODEL), recipe.lags)
            points.append(
                {"timesteps": now.timesteps, "wall_seconds": wall, "cpu_seconds": cpu, "score": mean_score(rows),
                 "scenarios": rows}
            )  # fmt: skip
            above = [name for name, others in yardsticks.items() if is_above(rows, others)]
            say(f"{now.timesteps:,} steps, {wall:.0f} s, {cpu:.0f} s CPU: {_line(rows)}; above {above or 'none'}")
            watch.go_on()

        def stopped() -> bool:
            return bool(asked.stop and points and is_above(points[-1]["scenarios"], yardsticks[asked.stop]))

        learn(run, note, stopped, evaluated=evaluated)
    return points


def merged(asked: argparse.Namespace, scores: Scores) -> dict[str, Any]:
    """The point of the mean of runs that learned side by side."""
    with tempfile.TemporaryDirectory() as folder:
        out, cpus, begun = Path(folder), sorted(os.sched_getaffinity(0)), time.monotonic()
        seeds = range(asked.seed, asked.seed + len(cpus))
        jobs = [TrainingJob(f"ppo-{seed}", "ppo", seed, DEFAULT, seconds=float(asked.merged)) for seed in seeds]
        found = train(jobs, out, cpus, say)
        merge([one.folder / "bundle" for one in found], out / "ppo", "ppo")
        wall, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = scores.of_manager(str(out / "ppo"))
    return {
        "timesteps": sum(one.timesteps for one in found), "wall_seconds": wall,
        "cpu_seconds": used.ru_utime + used.ru_stime, "score": mean_score(rows), "scenarios": rows,
    }  # fmt: skip


def _line(rows: dict[str, dict[str, float]]) -> str:
    each = ", ".join(f"{name} {row['qos_percent']:.2f}/{row['be_percent']:.1f}" for name, row in rows.items())
    return f"score {mean_score(rows):.1f}; {each}"


def _table(yardsticks: dict[str, Any], points: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    names = list(next(iter(yardsticks.values())))
    shown: list[tuple[str, ...]] = [("timesteps", "s", "CPU s", "score", *names)]
    policies = [((name, "", ""), rows) for name, rows in yardsticks.items()]
    for point in points:
        place = (f"{point['timesteps']:,}", f"{point['wall_seconds']:.0f}", f"{point['cpu_seconds']:.0f}")
        policies.append((place, point["scenarios"]))
    for place, rows in policies:
        cells = (f"{rows[name]['qos_percent']:.2f} / {rows[name]['be_percent']:.1f}" for name in names)
        shown.append((*place, f"{mean_score(rows):.1f}", *cells))
    return shown
