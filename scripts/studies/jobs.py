"""Several training runs side by side, each a `rlctl train` of its own on a CPU of its own.

A folder of runs can be come back to: finished runs are not repeated, those that were ended go on, and one that was
begun otherwise than it is asked for now is refused rather than mixed in.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from rlctl.agents.training.host_kinds import Hosts, load_hosts
from rlctl.agents.training.recipe import Recipe, as_document, load_recipe
from rlctl.agents.training.run_folder import is_run, newest_checkpoint
from rlctl.envs.errors import CheckFailed, ConfigError
from rlctl.envs.whole_file import write_json
from rlctl.envs.yaml_edge import load_model
from rlctl.loop.stopping import handle_signals

PLAN = "plan.json"
LOOK_SECONDS = 0.2
STOPPED = "stopped"
"""How a run ended that somebody ended: it goes on when it is asked for again."""


class Result(BaseModel):
    """One run, as `TrainingResult.as_json` wrote it.

    Attributes:
        merit: By which policies are compared, see `rlctl.agents.training.evaluations`; the larger is the better.
        validation: Scores of its best model, by scenario and metric, a value per seed.
    """

    model_config = ConfigDict(frozen=True)

    folder: Path
    ending: str
    timesteps: int
    seconds: float
    bundle: Path | None
    merit: float
    validation: dict[str, dict[str, tuple[float, ...]]] = Field(min_length=1)

    @property
    def is_finished(self) -> bool:
        """True when its policy is there and it was not ended early."""
        return self.ending != STOPPED and self.bundle is not None and (self.bundle / "card.json").is_file()

    def mean(self, metric: str) -> float:
        """One of METRICS, mean over scenarios and seeds."""
        return float(np.mean([np.mean(one[metric]) for one in self.validation.values()]))


class _File(BaseModel):
    runs: tuple[Result, ...] = Field(min_length=1, max_length=1)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One training run of several.

    Attributes:
        name: Name of its folder.
        algorithm: As `rlctl train --algo` takes it.
        shield: Safety profile under which policies are compared while they learn.
        timesteps, seconds: Its budget; None for the recipe's timesteps, and for no limit in time.
        recipe, hosts: What it learns by and on; None for what ships.
    """

    name: str
    algorithm: str
    seed: int
    shield: str
    timesteps: int | None = None
    seconds: float | None = None
    recipe: Recipe | None = None
    hosts: Hosts | None = None

    def plan(self) -> dict[str, Any]:
        """Everything that decides what it learns but the code, as JSON has it."""
        recipe, hosts = self.recipe or load_recipe(self.algorithm), self.hosts or load_hosts()
        given = {name: getattr(self, name) for name in ("algorithm", "seed", "shield", "timesteps", "seconds")}
        # The hosts have their profiles by name or file, and what stands in those may change.
        seen = [[kind.host().digest, shield.digest if (shield := kind.shield()) else None] for kind in hosts.kinds]
        documents = {"recipe": recipe.model_dump(mode="json"), "hosts": hosts.model_dump(mode="json")}
        return {**given, **documents, "profiles": seen}

    def inputs(self, out: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
        """Files of its own by the option that takes them: where each is, and what it holds."""
        documents = {
            "config": as_document(self.recipe) if self.recipe else None,
            "hosts": self.hosts.model_dump(mode="json") if self.hosts else None,
        }
        folder = out / "inputs"
        return {option: (folder / f"{self.name}-{option}.yaml", data) for option, data in documents.items() if data}


def finished(job: TrainingJob, out: Path) -> Result | None:
    """What it came to, if it is done; ConfigError: the file of that name is not one of `rlctl train --json`."""
    file = out / f"{job.name}.json"
    result = load_model(_File, file).runs[0] if file.is_file() else None  # JSON is YAML
    return result if result and result.is_finished else None


def command(job: TrainingJob, out: Path) -> list[str]:
    """The command line that does it, or goes on with it."""
    folder, result = out / job.name, ["--json", str(out / f"{job.name}.json")]
    rlctl = [sys.executable, "-m", "rlctl", "train"]
    if is_run(folder):
        return [*rlctl, "--resume", str(folder), *result]
    words = ["--algo", job.algorithm, "--seed", str(job.seed), "--shield", job.shield]
    for option, value in (("total-timesteps", job.timesteps), ("max-seconds", job.seconds)):
        words += [f"--{option}", f"{value:g}" if isinstance(value, float) else str(value)] if value is not None else []
    for option, (file, _) in job.inputs(out).items():
        words += [f"--{option}", str(file)]
    return [*rlctl, *words, "--out", str(folder), *result]


def train(
    jobs: Sequence[TrainingJob], out: Path, cpus: Sequence[int], told: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Do all runs, as many at a time as there are CPUs.

    Args:
        jobs: Runs with names of their own.
        out: Folder of all; made if need be.
        cpus: CPUs, one run at a time on each.
        told: Called with what begins and ends, in a line.

    Returns:
        What each came to, in the order of the jobs.

    Raises:
        ConfigError: The folder holds a run of one of these names that was begun otherwise.
        CheckFailed: A run failed; its log says why.
    """
    out.mkdir(parents=True, exist_ok=True)
    _keep_plan(jobs, out)
    left = [job for job in jobs if finished(job, out) is None]
    for job in jobs:
        if job in left:
            _prepare(job, out)
        else:
            told(f"{job.name}: finished before")
    failed = pinned({job.name: command(job, out) for job in left}, out, cpus, told)
    results = {job.name: finished(job, out) for job in jobs}
    if lacking := [name for name, result in results.items() if result is None]:
        raise CheckFailed(f"{', '.join(failed or lacking)}: no policy came of it; see {out / lacking[0]}.log")
    return [one for one in results.values() if one is not None]


def pinned(
    commands: Mapping[str, Sequence[str]], out: Path, cpus: Sequence[int], told: Callable[[str], None]
) -> list[str]:
    """Run commands, one at a time on each CPU; what they say goes to `<out>/<name>.log`.

    SIGINT and SIGTERM are handed on to those that run, and waited for: training runs then write a checkpoint.

    Returns:
        Names of those that failed.
    """
    waiting, failed = list(commands.items()), []
    running: dict[int, tuple[str, subprocess.Popen[bytes], float]] = {}
    with handle_signals(_interrupt, signal.SIGTERM):
        try:
            while waiting or running:
                for cpu in [one for one in cpus if one not in running][: len(waiting)]:
                    name, words = waiting.pop(0)
                    told(f"{name}: {shlex.join(words)} > {out / name}.log")
                    running[cpu] = name, _started(words, out / f"{name}.log", cpu), time.monotonic()
                time.sleep(LOOK_SECONDS)
                for cpu, (name, process, begun) in list(running.items()):
                    if (code := process.poll()) is not None:
                        del running[cpu]
                        failed += [name] if code else []
                        told(f"{name}: {'failed' if code else 'done'} after {time.monotonic() - begun:.0f} s")
        finally:
            for _, process, _ in running.values():
                process.send_signal(signal.SIGINT)
            for _, process, _ in running.values():
                process.wait()
    return failed


def _started(words: Sequence[str], log: Path, cpu: int) -> subprocess.Popen[bytes]:
    """A process of its own group: a Ctrl-C reaches it through us, once."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, process_group=0
        )
    os.sched_setaffinity(process.pid, {cpu})
    return process


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep_plan(jobs: Sequence[TrainingJob], out: Path) -> None:
    """Note what each run is; one that is there already must be the same."""
    file = out / PLAN
    kept: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    for job in jobs:
        now = json.loads(json.dumps(job.plan()))
        before = kept.setdefault(job.name, now)
        if differing := [key for key in now if before.get(key) != now[key]]:
            raise ConfigError(
                f"holds a run {job.name} with other {', '.join(differing)}; give another --out, or remove it", out
            )
    write_json(file, kept)


def _prepare(job: TrainingJob, out: Path) -> None:
    """Write its input files, and take a run away that ended before there was anything to go on from."""
    if is_run(out / job.name):
        try:
            newest_checkpoint(out / job.name)
        except ConfigError:
            shutil.rmtree(out / job.name)
    for file, data in job.inputs(out).values():
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110))
