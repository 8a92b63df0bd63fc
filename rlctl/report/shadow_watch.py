"""Shadows: policies that watch the live stream and say what they would have done, while another one acts.

The tick log is the stream. So shadows run in a process of their own, which can neither delay nor hurt the loop that
acts; whatever they do, BE is as that one left it.

What a shadow sees is another's work. Readings and the history in its observations belong to the allocations that were
in force, never to those that it asked for itself. A learned policy is asked what a fresh look at this host would make
it do next, one step at a time. A manager with settings of its own goes on from these, though they were never in force.
Its answers are ruled by the same guards, and the growth rate counts from what is in force. A shadow can ask for more,
but get only a step more than BE has. What came of it is not in here; `rlctl.report.shadow_report` says what can be told
anyway.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from rlctl.agents.policy import Policy
from rlctl.agents.policy_runner import Decision, PolicyRunner, propose
from rlctl.agents.served.circuit_breaker import FailureBudget
from rlctl.agents.served.worker import AnswerThread, CallFailed
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.log_lines import Damage, read_lines
from rlctl.envs.observation import Observation
from rlctl.envs.reins import Rein, used_cpus
from rlctl.envs.telemetry import number
from rlctl.envs.ticklog import LOG_NAME, numbered_files
from rlctl.envs.workload import Weight
from rlctl.log.reader import LoggedTick, allocation_of, limits_in, profile_in, run_in
from rlctl.log.record import allocation_as_json
from rlctl.log.replay import begins_anew, period_in, take_conditions
from rlctl.log.writer import LogWriter
from rlctl.safety.growth import GrowthRate, SlackHold
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import OF_SERVICE, Verdict

HANG_SECONDS = 2.0
"""Wall clock after which a call is given up. The policy's budget is in CPU time: a shadow runs at the lowest priority,
and may be late through no fault of its own."""


class Shadow(Policy):
    """One policy that watches, in a PolicyRunner that nobody obeys, started anew with each run of the log.

    It answers from a thread of its own: it may raise, hang or leave, and the others go on.
    """

    shielded, weight, note, remarks = True, Weight.EQUAL, "", ()

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name, self.masked, self.needs, self.learned = policy.name, policy.masked, policy.needs, policy.learned
        self.learns, self.hash = policy.learns, policy.digest
        self._worker: AnswerThread[tuple[Allocation, float]] = AnswerThread(f"shadow {policy.name}")

    def start(self, limits: Limits) -> Allocation:
        """The policy itself starts with its next answer, in its thread."""
        self._limits, self._started = limits, False
        self._ruling: Verdict | None = None
        return limits.safe

    def act(self, observation: Observation) -> Allocation:
        """What the policy asks for, as the control loop would ask it; CallFailed without a usable answer in time."""
        self._unlike = self.policy.unfamiliar(observation)
        self._late, self._cpu_seconds = False, 0.0
        try:
            proposed, self._cpu_seconds = self._worker.call(lambda: self._ask(observation), HANG_SECONDS)
        except CallFailed:
            self._late = self._worker.busy
            raise
        within_seconds = FailureBudget().answer_within(observation.tick_seconds)
        self._late = self._cpu_seconds > within_seconds
        if self._late:
            taken, most = 1e3 * self._cpu_seconds, 1e3 * within_seconds
            raise CallFailed(f"took {taken:.3g} ms of CPU time, {most:.3g} are allowed")
        return proposed

    def answer(self, decision: Decision) -> Answer:
        """Its last proposal, and what the guards made of it."""
        verdict, failed = decision.verdict, str(decision.error or "")
        guards = tuple(dict.fromkeys(bound.guard for bound in verdict.decisive if bound.reason not in OF_SERVICE))
        return Answer(
            decision.proposed, verdict.allocation, self._cpu_seconds, guards, failed, self._late, self._unlike
        )

    def learn_ruling(self, verdict: Verdict) -> None:
        """The policy hears it with its next question, in its thread."""
        self._ruling = verdict

    def close(self) -> None:
        """Let go of the thread. Idempotent."""
        self._worker.close()
        self.policy.close()

    def _ask(self, observation: Observation) -> tuple[Allocation, float]:
        """In the policy's thread."""
        if not self._started:
            self.policy.start(self._limits)
            self._started = True
        ruling, self._ruling = self._ruling, None
        if ruling is not None:
            self.policy.learn_ruling(ruling)
        begun = time.thread_time()
        proposed, _ = propose(self.policy, observation, self._limits)
        return proposed, time.thread_time() - begun


class Shadows:
    """Any number of shadows over one stream; `unruled` ticks are those under no known shield, or on no known host.

    They share one shield, made from the log's header and apart from the acting loop's: what guards remember depends on
    readings only, so one memory serves any number of them.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.shadows = tuple(Shadow(policy) for policy in policies)
        self.ticks = self.unruled = 0
        self._last: LoggedTick | None = None
        self._shield: Shield | None = None
        self._runners: tuple[PolicyRunner, ...] = ()
        self._told: tuple[Mapping[str, float], float] | None = None
        self._headers: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})

    def see(self, logged: LoggedTick) -> Watched | None:
        """Ask all about the next tick of the log; None where nothing can be said of it."""
        if self._last is None or begins_anew(self._last, logged):
            self._begin(logged)
        self._last = logged
        self.ticks += 1
        if self._shield is None:
            self.unruled += 1
            return None
        tick, telemetry, before = logged.tick, logged.tick.telemetry, logged.tick.before
        take_conditions(logged, self._shield, *(runner.observer for runner in self._runners))
        answers = {}
        for shadow, runner in zip(self.shadows, self._runners, strict=True):
            answers[shadow.name] = shadow.answer(runner.decide(telemetry, before, cut=tick.cut))
        # Who keeps to the CPUs leaves link and disk free: how far BE would have used what is in hand, nobody knows.
        comparable = telemetry.rein == Rein.CPU or all(one.policy.moves_reins for one in self.shadows)
        missed = telemetry.missed
        return Watched(
            run=hashlib.sha256(repr(run_in(logged.header)).encode()).hexdigest()[:8],
            index=tick.index,
            wall_seconds=tick.wall_seconds,
            acting=tick.acting or tick.policy,
            load_ratio=number(telemetry.load_ratio),
            met=None if missed is None else not missed,
            be_cpus=used_cpus(telemetry, self._shield.limits.cpus) if comparable else None,
            applied=tick.applied,
            overridden=tick.verdict.overridden_by_guard,
            answers=answers,
            header=self._header_from(logged.header),
        )

    def close(self) -> None:
        """Let go of all threads. Idempotent."""
        for shadow in self.shadows:
            shadow.close()

    def _begin(self, logged: LoggedTick) -> None:
        header, before = logged.header, self._runners
        limits, profile, period = limits_in(header), profile_in(header), period_in(header)
        if limits is None or profile is None or period is None:
            self._shield, self._runners = None, ()
            return
        self._shield = Shield(profile, limits)
        self._runners = tuple(PolicyRunner(shadow, self._shield, limits, period) for shadow in self.shadows)
        for runner in self._runners:
            runner.start()
        # What the host has taught goes on, as it does for the policy that acts, unless it is another host now.
        told = logged.tick.telemetry.targets_seconds, period
        gap_seconds = max(logged.tick.wall_seconds - self._last.tick.wall_seconds, 0.0) if self._last else 0.0
        if told == self._told:
            for runner, earlier in zip(self._runners, before, strict=False):
                if earlier.limits == limits:
                    runner.observer.go_on(earlier.observer, gap_seconds)
        self._told = told

    def _header_from(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """The log's header with the shadows in it, one object for as long as it is the same."""
        if self._headers[0] is not header:
            shadows = {shadow.name: {"hash": shadow.hash, "learned": shadow.learned} for shadow in self.shadows}
            rest = {name: value for name, value in header.items() if name != "guards"}
            self._headers = header, {**rest, "shadows": shadows}
        return self._headers[1]


SHADOW_LOG_NAME = "shadow.jsonl"
"""Name of its newest file, which lies beside the tick log by default."""

FROM_WHAT_IS_IN_FORCE = frozenset({GrowthRate.name, SlackHold.name})
"""Guards whose bound is what is in force, or a step more."""

Logged = Annotated[Allocation, PlainValidator(allocation_of), PlainSerializer(allocation_as_json)]
Seconds = Annotated[FiniteFloat, PlainSerializer(lambda seconds: round(seconds, 6))]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shadow would have proposed at a tick, and what the shield would have allowed; aliases are the log's keys.

    Attributes:
        proposed: Its proposal; the safe allocation when it had no usable answer.
        allowed: What the shield would have let through of it.
        failed: Why there was no usable answer; empty when there was one.
        drift: What of the tick the policy's training never had; empty when nothing, or nothing is known of it.
    """

    proposed: Annotated[Logged, Field(alias="asked")]
    allowed: Annotated[Logged, Field(alias="got")]
    cpu_seconds: Seconds
    guards: tuple[str, ...] = ()
    failed: str = ""
    late: bool = False
    drift: str = ""

    @property
    def refused(self) -> bool:
        """A guard that goes by readings alone would not have let it through as it was."""
        # The other guards count from what is in force, which is the acting policy's work: a shadow that would give BE
        # twice as much exceeds them in every tick, and would in the first few only if it acted.
        return any(guard not in FROM_WHAT_IS_IN_FORCE for guard in self.guards)


@dataclass(frozen=True, slots=True)
class Watched:
    """One tick of the stream, and every shadow's answer to it, by the shadow's name; aliases are the log's keys.

    Attributes:
        run: A few letters that tell runs of the service apart.
        wall_seconds: Wall clock, Unix time in seconds.
        load_ratio, be_cpus: Load, and what BE used of the rein in hand, in CPUs of a level, in the period before; None
            when they are not known.
        met: The window before held the target; None when nothing was measured.
        overridden: The shield did not let the acting policy's proposal through as it was; not the service alone.
    """

    index: Annotated[int, Field(alias="tick")]
    wall_seconds: Annotated[Seconds, Field(alias="ts")]
    run: str
    acting: str
    load_ratio: Annotated[FiniteFloat | None, Field(alias="load")]
    met: bool | None
    be_cpus: FiniteFloat | None
    applied: Logged
    overridden: bool
    answers: Mapping[str, Answer]
    header: Annotated[Mapping[str, Any], Field(exclude=True)] = field(default_factory=dict)


_LINE = TypeAdapter(Watched)


def watched_as_json(watched: Watched) -> dict[str, object]:
    """A watched tick as plain data; what is not known is null, and an answer lacks what it has nothing of."""
    plain: dict[str, object] = _LINE.dump_python(watched, mode="json", by_alias=True, exclude_defaults=True)
    return plain


class ShadowLog(LogWriter[Watched]):
    """The log of every watched tick, rotated and bounded as the tick log; its arguments are those of `LogWriter`.

    One line serves all shadows. The tick itself stands there once, and a crash tears all of a tick or nothing. So
    policies are compared on the same ticks. A line has what a report needs of the tick too: tick logs are rotated away
    within hours, and a promotion looks back on days.
    """

    def __init__(self, path: Path, most_bytes: int = 16 << 20, keep: int = 4) -> None:
        super().__init__(path, watched_as_json, most_bytes, keep)
        self.header = lambda watched: watched.header
        self._told: Mapping[str, Any] | None = None

    def write(self, record: Watched) -> None:
        """Append one line; a header before it wherever the tick log had another."""
        if record.header is not self._told:
            self._told = record.header
            self.renew_header()
        super().write(record)


def beside(log: Path) -> Path:
    """Where the shadow log of a tick log is by default.

    Args:
        log: The tick log's newest file, or its directory, which may not be there yet.
    """
    is_file = log.is_file() or log.name.startswith(LOG_NAME)
    return (log.parent if is_file else log) / SHADOW_LOG_NAME


def shadow_files(path: Path) -> tuple[Path, ...]:
    """The files of a shadow log, oldest first, by its newest file or the directory that holds it.

    Raises:
        ConfigError: There is none of them.
        PermissionMissing: The directory may not be read.
    """
    newest = path / SHADOW_LOG_NAME if path.is_dir() else path
    if not (files := numbered_files(newest) if newest.parent.is_dir() else ()):
        raise ConfigError("there is no shadow log; `rlctl shadow watch` writes one, or name policies to ask", newest)
    return files


def read_watched(paths: Iterable[Path], damaged: Callable[[Damage], None]) -> Iterator[Watched]:
    """Every watched tick of a shadow log, oldest file first; damaged lines are reported and left out."""
    header: Mapping[str, Any] = {}
    for line in read_lines(paths, damaged):
        if line.is_header:
            header = line.content
            continue
        try:
            yield replace(_LINE.validate_python(line.content), header=header)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            details = error.errors() if isinstance(error, ValidationError) else []
            why = ", ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in details) or str(error)
            damaged(Damage(line.path, line.number, f"not a line of a shadow log: {why}"))
