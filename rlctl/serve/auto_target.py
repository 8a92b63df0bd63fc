"""`target_milliseconds: auto`: a target that nobody told, proposed from the LC's own tail.

The control are windows with BE at its minimum: a block of them at the LC's first requests, and further ones between
times in which BE is free. What BE does to the LC while it is free stands beside the proposal and is no part of it.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlctl.config.serve import LcSection, ServeConfig
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, in_one_line
from rlctl.envs.host.cgroup.journal import read_own
from rlctl.envs.host.latency.inet_diag import jiffy_seconds
from rlctl.envs.host.max_load import window_of
from rlctl.envs.telemetry import GROWN_SECONDS, Quantile, Telemetry, number, offered_rps
from rlctl.envs.whole_file import write_json
from rlctl.log.record import Tick
from rlctl.safety.verdict import Bound, Reason

log = logging.getLogger("rlctl.serve")

TARGETS = "target.json"
"""Below the state directory: the proposals, so that a restart at another load does not move the objective."""

SCHEMA, MOST_BYTES = 1, 1 << 16

MULTIPLE = 2.0
"""The target by the LC's own tail: half of it is left as slack, of which every shipped shield asks for less."""

OWN_QUANTILE, MISSED_RATIO = 0.95, 0.05
"""The own tail is what so many windows with BE held stay below; and how seldom its true value lies beyond each end."""

FIRST_WINDOWS, WINDOWS, REQUESTS, MOST_WINDOWS = 15, 60, 200, 1000
"""Windows of a block with BE held, after the first of which there is a target; what the proposal takes, and how many it
stands on at most, the newest. Of fewer than 59 the highest need not be above the 95th percentile (.95^59 < .05)."""

LEAST_SECONDS = 1e-3
"""Of a target where all windows read 0: the step of most logs."""

FREE_SECONDS, MOST_BLOCK_SECONDS = 45.0, 60.0
"""BE is free for so long between two blocks, in which it needs ten seconds to grow; and a block has an end."""

SETTLED_SECONDS, BEYOND_RATIO, AGAIN_SECONDS = 10.0, 1.2, 3600.0
"""Misses with BE held for so long, at so much more than the load of the proposal, are told once in so long."""


@dataclass(frozen=True, slots=True)
class TargetProposal:
    """A target in seconds, and what it stands on.

    Attributes:
        own_seconds: The LC's own tail: OWN_QUANTILE of the windows with BE held.
        low_seconds, high_seconds: What that lies between.
        least_seconds: The least that the latency source can judge.
        windows, requests: With BE held.
        most_rps: The highest load among them.
        free_seconds, free_low_seconds, free_windows: The same tail with BE free; NaN of no window.
        made_seconds: Unix time at which the last window ended.
    """

    own_seconds: float
    low_seconds: float
    high_seconds: float
    least_seconds: float
    windows: int
    requests: int
    most_rps: float
    free_seconds: float
    free_low_seconds: float
    free_windows: int
    made_seconds: float

    @property
    def target_seconds(self) -> float:
        """MULTIPLE times the own tail, rounded up to two digits, and no less than can be judged."""
        wanted = max(MULTIPLE * self.own_seconds, self.least_seconds) or LEAST_SECONDS
        # Two digits are as many as an operator types, and more than the windows say.
        digit = 10.0 ** (math.floor(math.log10(wanted)) - 1)
        return round(math.ceil(wanted / digit - 1e-6) * digit, 9)

    def __str__(self) -> str:
        own, low, high, free = (
            f"{1e3 * seconds:.3g} ms"
            for seconds in (self.own_seconds, self.low_seconds, self.high_seconds, self.free_seconds)
        )
        how = f"{MULTIPLE:g} times its own tail of {own} ({low} to {high})"
        if self.least_seconds > MULTIPLE * self.own_seconds:
            how = f"the least that its latency source can judge, as its own tail is {own}"
        # BE free and BE held took turns, so that both met the same loads: what they differ by is BE's doing.
        beside = f"; with BE free its tail was {free} in {self.free_windows} windows" if self.free_windows else ""
        if self.free_low_seconds > self.high_seconds:
            beside += ", which is BE's doing and no part of the target"
        return (
            f"{1e3 * self.target_seconds:g} ms, {how}, from {self.requests} requests in {self.windows} windows with BE "
            f"held, at up to {_rate(self.most_rps)} requests a second{beside}"
        )


class TargetWatch:
    """Learns the own tail of one LC, and says when BE has to be held for that.

    Args:
        least_seconds: The least target that its latency source can judge.
        proposal: What is known from before: then nothing is learned.

    Attributes:
        holds: BE is to have its minimum in the next window.
        proposal: None before the first block has ended; a first guess until `done`.
        done: The proposal stays.
    """

    def __init__(
        self, name: str, least_seconds: float, tick_seconds: float, proposal: TargetProposal | None = None
    ) -> None:
        self.name, self.proposal, self.done = name, proposal, proposal is not None
        self.holds = False
        self._least_seconds, self._tick_seconds = least_seconds, tick_seconds
        self._held, self._free = deque[float](maxlen=MOST_WINDOWS), deque[float](maxlen=MOST_WINDOWS)
        self._requests = self._most_rps = 0.0
        self._held_since: float | None = None
        self._block: tuple[float, int] | None = None
        self._free_since = self._seen_seconds = self._told_seconds = -math.inf

    @property
    def progress(self) -> str:
        """How much of the control there is, for people."""
        return f"{len(self._held)} of {WINDOWS} windows, {self._requests:.0f} of {REQUESTS} requests"

    def observe(self, lc: Telemetry, *, held: bool, free: bool, wall_seconds: float) -> None:
        """Learn from a window.

        Args:
            held: BE had its minimum at most in it.
            free: BE could have half of its CPUs or more.
        """
        now, tail = lc.time_seconds, lc.tail_latency_seconds
        self._held_since = None if not held else now if self._held_since is None else self._held_since
        rps = number(offered_rps(lc.counters)) or 0.0
        if self.done:
            self._tell_beyond(lc, rps)
            return
        if isinstance(tail, Quantile) and tail.samples > 0:
            self._seen_seconds = now
            # What BE did before stays in a window for as long as that is, and in queues for a tick more.
            settled = window_of(lc) + self._tick_seconds
            if self._held_since is not None and now - self._held_since >= settled:
                self._held.append(tail.value)
                # Windows of few requests overlap, so requests are counted by their rate.
                self._requests += rps * self._tick_seconds or tail.samples
                self._most_rps = max(self._most_rps, rps)
            elif free:
                self._free.append(tail.value)
        # Until then the first guess holds: no LC is without a guard for longer than a block.
        enough = len(self._held) >= WINDOWS and self._requests >= REQUESTS
        if enough or (self.proposal is None and len(self._held) >= FIRST_WINDOWS):
            self.proposal, self.done = self._propose(wall_seconds), enough
        self._plan(now)

    def _plan(self, now: float) -> None:
        """Begin or end a block; beside an LC without requests BE is left free, for there is nothing to learn."""
        # At some requests in ten seconds most ticks have none, and are part of the block all the same.
        active = now - self._seen_seconds < GROWN_SECONDS
        if self._block is None:
            if active and not self.done and now - self._free_since >= FREE_SECONDS:
                self._block = now, len(self._held)
        else:
            begun_seconds, windows = self._block
            # A block of an LC with few requests ends by time, or BE would be held for most of the day.
            full = len(self._held) - windows >= FIRST_WINDOWS
            if self.done or full or not active or now - begun_seconds >= MOST_BLOCK_SECONDS:
                self._block, self._free_since = None, now
        self.holds = self._block is not None

    def _propose(self, wall_seconds: float) -> TargetProposal:
        held, free = sorted(self._held), sorted(self._free)
        low, high = quantile_bounds(len(held), OWN_QUANTILE, MISSED_RATIO)
        return TargetProposal(
            own_seconds=_at(held, OWN_QUANTILE),
            low_seconds=held[low],
            high_seconds=held[high],
            least_seconds=self._least_seconds,
            windows=len(held),
            requests=round(self._requests),
            most_rps=self._most_rps,
            free_seconds=_at(free, OWN_QUANTILE) if free else math.nan,
            free_low_seconds=free[quantile_bounds(len(free), OWN_QUANTILE, MISSED_RATIO)[0]] if free else math.nan,
            free_windows=len(free),
            made_seconds=round(wall_seconds),
        )

    def _tell_beyond(self, lc: Telemetry, rps: float) -> None:
        """Warn that the proposal does not fit a load that was not there when it was made."""
        # A miss with BE held is not BE's; at the load of the proposal it is the host's or an accident.
        alone = self._held_since is not None and lc.time_seconds - self._held_since >= SETTLED_SECONDS
        if self.proposal is None or not (alone and lc.missed and rps > BEYOND_RATIO * self.proposal.most_rps):
            return
        if lc.time_seconds - self._told_seconds >= AGAIN_SECONDS:
            self._told_seconds = lc.time_seconds
            log.warning(
                "LC %s misses its proposed target with BE held, at %s requests a second; it was proposed at up to "
                "%s: tell a target, or remove %s and start anew",
                self.name, _rate(rps), _rate(self.proposal.most_rps), TARGETS,
            )  # fmt: skip


class AutoTargets:
    """The LCs of a service to which nobody told a target. A recorder, and bounds for the shield.

    Args:
        home: Keeps the proposals; None keeps nothing.
        told: Takes each new target: the LC's name, the proposal, and whether it stays.
        dry_run: BE is never really held, so nothing is learned.
        waiting: LCs that have no latency: what they wait for is bounded, and there is nothing to propose.

    Attributes:
        watches: By the LC's name.
    """

    def __init__(
        self,
        config: ServeConfig,
        home: Path | None,
        limits: Limits,
        told: Callable[[str, TargetProposal, bool], object],
        *,
        dry_run: bool = False,
        waiting: Collection[str] = (),
    ) -> None:
        self._limits, self._told = limits, told
        self._path = None if home is None else home / TARGETS
        self._of = {name: _identity(lc) for name, lc in config.lcs.items() if lc.slo.target_milliseconds == "auto"}
        for name in self._of.keys() & waiting:
            del self._of[name]
            log.info("LC %s: target auto proposes nothing, as no latency is known; what it waits is bounded", name)
        known = self._read() if self._of else {}
        # The kernel's stamps err by a jiffy: of a target of two the source's own step would leave no slack.
        least = 3.0 * jiffy_seconds()
        self.watches = {
            name: TargetWatch(
                name, least if self._of[name]["latency"] == "tcp" else 0.0, config.tick_seconds, known.get(name)
            )
            for name in self._of
        }
        for name, watch in self.watches.items():
            if watch.proposal is not None:
                log.info(
                    "LC %s: target auto (proposed %s): %s; to fix it tell one by --target or in the file; to learn it "
                    "anew remove %s", name, _date(watch.proposal), watch.proposal, self._path,
                )  # fmt: skip
            elif dry_run:
                # Windows in which BE only would have been held have its harm in them.
                watch.done = True
                log.warning(
                    "LC %s: target auto: a dry run does not hold BE, so no target is proposed and none guards the LC",
                    name,
                )
            else:
                log.info(
                    "LC %s: target auto: none is told. BE is free, but while requests come it is held at its minimum "
                    "for %d windows, again after %g s each, until %d windows and %d requests show the LC's own tail. "
                    "%g times that is then proposed. To tell one instead: `--target 12ms`, or "
                    "lc.slo.target_milliseconds: 12 in the file",
                    name, FIRST_WINDOWS, FREE_SECONDS, WINDOWS, REQUESTS, MULTIPLE,
                )  # fmt: skip

    def write(self, tick: Tick) -> None:
        """Learn from a tick."""
        before = tick.before
        held = self._limits.is_least(before)
        free = not before.frozen and before.usable_cpus >= 0.5 * self._limits.cpus
        for name, watch in self.watches.items():
            lc = tick.telemetry.lcs.get(name if tick.telemetry.ruling else "")
            if lc is None:
                continue
            # A period that the fast guard cut was neither held nor free.
            known = watch.proposal
            watch.observe(lc, held=held and not tick.cut, free=free and not tick.cut, wall_seconds=time.time())
            if watch.proposal is not None and watch.proposal is not known:
                # A first guess is not kept: a restart has its block of windows again.
                if watch.done:
                    self._keep()
                self._told(name, watch.proposal, watch.done)

    def bounds(self, limits: Limits) -> tuple[Bound, ...]:
        """BE's minimum while a block of windows of some LC goes on."""
        self._limits = limits
        return tuple(
            Bound("target-watch", Reason.TARGET_WATCH, limits.minimum, watch.progress)
            for watch in self.watches.values()
            if watch.holds
        )

    def _keep(self) -> None:
        if self._path is None:
            return
        done = {name: watch.proposal for name, watch in self.watches.items() if watch.done and watch.proposal}
        kept = {name: {"of": self._of[name], "proposal": _finite(asdict(one))} for name, one in done.items()}
        try:
            write_json(self._path, {"schema": SCHEMA, "lcs": kept})
        except OSError as error:
            log.warning("%s: %s: a restart proposes a target anew", error.filename, error.strerror)

    def _read(self) -> dict[str, TargetProposal]:
        """The proposals for the same LCs, by name; whatever is in the file, the service begins."""
        if self._path is None:
            return {}
        try:
            plain = json.loads(read_own(self._path, MOST_BYTES))
            if plain["schema"] != SCHEMA:
                raise ConfigError(f"schema {plain['schema']!r}")
            return dict(self._same(plain["lcs"]))
        except FileNotFoundError:
            return {}
        except Exception as error:  # noqa: BLE001 - a damaged file costs some minutes of learning
            log.warning("%s: a target is proposed anew: %s", self._path, in_one_line(error))
            return {}

    def _same(self, kept: Mapping[str, Any]) -> Iterator[tuple[str, TargetProposal]]:
        for name, one in kept.items():
            # Of another service, source or quantile it would be a number without a meaning.
            if self._of.get(name) != one["of"]:
                continue
            plain: dict[str, Any] = one["proposal"]
            figures: dict[str, Any] = {key: math.nan if value is None else value for key, value in plain.items()}
            proposal = TargetProposal(**figures)
            if proposal.own_seconds < 0.0 or not 0.0 < proposal.target_seconds < math.inf:
                raise ValueError(f"a target of {proposal.target_seconds} s")
            yield name, proposal


def quantile_bounds(count: int, quantile: float, missed_ratio: float) -> tuple[int, int]:
    """Places in `count` sorted values between which their quantile lies; the ends are missed so seldom, each.

    Order statistics: of `count` values Binomial(count, quantile) lie below the quantile, whatever they are distributed
    as. Where the highest is not enough it stands all the same.
    """
    below, low, high = 0.0, 0, count - 1
    for place in range(count + 1):
        below += math.comb(count, place) * quantile**place * (1.0 - quantile) ** (count - place)
        if below <= missed_ratio:
            low = place
        if below >= 1.0 - missed_ratio:
            high = min(place, count - 1)
            break
    return min(low, high), high


def _at(ordered: Sequence[float], quantile: float) -> float:
    return ordered[max(math.ceil(quantile * len(ordered)) - 1, 0)]


def _identity(lc: LcSection) -> dict[str, Any]:
    """What has to be the same for a proposal to say anything."""
    return {
        "workload": lc.workload.model_dump(mode="json", exclude={"pid"}),
        "latency": lc.latency.kind,
        "quantile_percent": lc.slo.quantile_percent,
    }


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _rate(rps: float) -> str:
    return f"{rps:.0f}" if rps >= 10.0 else f"{rps:.2g}"


def _date(proposal: TargetProposal) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(proposal.made_seconds))
