"""Recordings made into transitions: tick logs of `rlctl serve` and live benches, and folders of live training runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.agents.training.nearest_move import nearest_move
from rlctl.agents.training.offline.writer import Recording
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, reading
from rlctl.envs.log_lines import Damage, log_files
from rlctl.envs.observation import Observer
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.learn.transitions import Cut, TransitionBuilder, TransitionStep, recording_of_builders
from rlctl.log.reader import LoggedTick, allocation_of, limits_in, profile_in, read_log, usual_gap
from rlctl.log.replay import begins_anew, digest_in, period_in, take_conditions
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield

TRANSITIONS = "transitions.jsonl"
"""What `rlctl train --plant host` writes into the folder of its run."""

LATE_RATIO = 1.5
"""Of the control period: a longer one is two."""


def recording_of(path: Path, safety: Profile | None, damaged: Callable[[Damage], None]) -> Recording:
    """The transitions of a tick log (a file, or a folder of one), or of the folder of a live training run.

    Raises:
        ConfigError: It is neither, or a log does not say under which shield it was recorded.
        PermissionMissing: It may not be read.
    """
    file = path / TRANSITIONS if path.is_dir() else path
    if file.name == TRANSITIONS and file.exists():
        return of_live_run(file, damaged)
    return of_log(path, safety, damaged)


def of_log(path: Path, safety: Profile | None, damaged: Callable[[Damage], None]) -> Recording:
    """The transitions of a tick log; ConfigError where it is none, or does not say under which shield.

    The shield's masks are computed anew, as `rlctl replay` does. Where lines are missing its guards and the history
    that the policy saw are not known: both begin anew there.
    """
    files = log_files(path)
    reader, last = _LogReader(safety, path), None
    for decision in read_log(files, damaged):
        reader.see(decision, last)
        last = decision
    if last is None:
        raise ConfigError("no tick is recorded here; give the log of a longer run", path)
    return reader.recording(_sha256(files))


class _LogReader:
    """A log, run by run."""

    def __init__(self, safety: Profile | None, path: Path) -> None:
        self._safety, self._path = safety, path
        self._weavers: list[TransitionBuilder] = []
        self._shield: Shield
        self._tick_seconds: float | None = None

    def see(self, decision: LoggedTick, last: LoggedTick | None) -> None:
        """The next tick, and the one before it."""
        if last is None or begins_anew(last, decision):
            self._begin(decision, None if last is None else Cut.RESTART)
        elif _settings(last) != _settings(decision):
            self._begin(decision, Cut.SETTINGS)
        elif not decision.unbroken or decision.tick.index != last.tick.index + 1:
            self._begin(decision, Cut.GAP if decision.unbroken else Cut.DAMAGE)
        elif self._late(decision, last):
            self._weavers[-1].cut(Cut.GAP)
        elif decision.tick.cut:
            self._weavers[-1].cut(Cut.BETWEEN)
        self._add(decision)

    def recording(self, sha256: str) -> Recording:
        """What was read of the whole log."""
        assert self._tick_seconds is not None
        return recording_of_builders(
            self._weavers,
            self._tick_seconds,
            kind="tick log",
            name=str(self._path),
            sha256=sha256,
            host=f"{self._limits.cpus} CPUs for BE, {self._limits.lc_cpus:g} of the LC's",
            shield=self._shield.profile.name,
            shield_digest=self._shield.profile.digest,
        )

    def _begin(self, decision: LoggedTick, cut: Cut | None) -> None:
        """Guards and history begin anew; what guards remember a header may say."""
        header = decision.header
        safety = profile_in(header) or self._safety
        limits, period = limits_in(header), period_in(header)
        if limits is None or period is None:
            raise ConfigError("no header says on which host it was recorded", decision.path, decision.number)
        if safety is None:
            raise ConfigError(
                "does not say under which shield it was recorded; name one with --shield",
                decision.path,
                decision.number,
            )
        if self._tick_seconds not in (None, period):
            raise ConfigError(
                f"has ticks of {self._tick_seconds:g} s and of {period:g} s; export them apart", self._path
            )
        if cut is not None:
            self._weavers[-1].cut(cut)
        if cut in (None, Cut.RESTART, Cut.SETTINGS):
            self._weavers.append(TransitionBuilder(limits, period))
        self._tick_seconds, self._limits = period, limits
        self._observer, self._shield = Observer(limits, period), Shield(safety, limits)

    def _late(self, decision: LoggedTick, last: LoggedTick) -> bool:
        passed = decision.tick.telemetry.time_seconds - last.tick.telemetry.time_seconds
        assert self._tick_seconds is not None
        return not passed <= LATE_RATIO * self._tick_seconds

    def _add(self, decision: LoggedTick) -> None:
        tick, limits = decision.tick, self._limits
        take_conditions(decision, self._shield, self._observer)
        proposed = nearest_move(limits.clip(tick.proposed), tick.before, limits)
        self._weavers[-1].add(
            TransitionStep(
                observation=self._observer.observe(tick.telemetry, tick.before, cut=tick.cut).vector,
                mask=self._shield.mask(tick.telemetry, tick.before),
                telemetry=tick.telemetry,
                before=tick.before,
                applied=tick.applied,
                proposed_move=proposed,
                executed_move=nearest_move(limits.clip(tick.applied), tick.before, limits, preferred=proposed),
                policy=tick.acting or tick.policy,
                overridden=tick.verdict.overridden_by_guard,
            )
        )


def _settings(decision: LoggedTick) -> tuple[object, ...]:
    header, targets = decision.header, decision.tick.telemetry.targets_seconds
    return limits_in(header), digest_in(header), period_in(header), dict(targets)


def of_live_run(file: Path, damaged: Callable[[Damage], None]) -> Recording:
    """The transitions of a live training run; a phase begins with the host at the safe allocation.

    Its lines hold what the policy saw, and of the readings what the reward is made of; ConfigError where none does.
    """
    with reading(file):
        raw = file.read_bytes().split(b"\n")[:-1]  # what stands behind the last newline was cut off by a crash
    steps: list[tuple[Mapping[str, Any], TransitionStep] | None] = []
    for number, text in enumerate(raw, 1):
        try:
            line = json.loads(text)
            steps.append((line, _moment(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            damaged(Damage(file, number, "is no step of a training run"))
            steps.append(None)
    read = [one for _, one in filter(None, steps)]
    if not read:
        raise ConfigError("holds no step of a training run", file)
    cpus = max(one.applied.cpuset_cpus for one in read)
    builder, last = TransitionBuilder(Limits(cpus)), None
    for step in steps:
        if step is None:
            builder.cut(Cut.DAMAGE)
            last = None
            continue
        line, moment = step
        if last and (line["begins"] or line["phase"] != last[0]["phase"]):
            builder.cut(Cut.RESTART)
            last = None
        elif last and last[0]["missed_deadlines"] > 0:
            builder.cut(Cut.GAP)
        # What was read before a phase's first step is not recorded: it counts as sound, and no reward is made of it.
        builder.add(replace(moment, telemetry=(last or step)[1].telemetry))
        last = step
    period = round(usual_gap([one.telemetry.time_seconds for one in read]), 3)
    origin = {"kind": "train-live", "name": str(file.parent), "sha256": _sha256((file,)), "host": f"{cpus} CPUs for BE"}
    return recording_of_builders([builder], period, **origin)


_NUMBERS = {move.name: place for place, move in enumerate(MOVES)}


def _moment(line: Mapping[str, Any]) -> TransitionStep:
    """A line of a live training run; the telemetry is what came of it."""
    slack, chosen = line["slack_ratio"], _NUMBERS[line["chosen"]]
    latency = Missing(Why.NO_DATA) if slack is None else Quantile(1.0 - float(slack), samples=1)
    work = Value(float(line["be_work_ratio"]))
    observation = np.array(line["observation"], np.float32)
    if observation.shape != (Observer(Limits(1), 1.0).size,):
        raise ValueError("observations of another history")
    return TransitionStep(
        observation=observation,
        mask=np.array([letter == "1" for letter in line["mask"]], np.bool_),
        telemetry=Telemetry(float(line["time_seconds"]), 1.0, latency, be_work_rate=work),
        before=allocation_of(line["before"]),
        applied=allocation_of(line["in_force"]),
        proposed_move=chosen,
        executed_move=_NUMBERS[line["executed"]],
        policy="train-live",
        overridden=bool(line["overridden"]),
        explored=_NUMBERS[line["proposed"]] != chosen,
    )


def _sha256(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()
