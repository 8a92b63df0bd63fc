"""The evidence that BE harms the LC: misses while BE runs, beside those while BE is held, which are the LC's own.

Where BE has the kernel's least weight, and that weight counts, BE is free until such evidence comes. `Shield` waives
the bounds of the slack guards and of the growth rate until then; what these guards remember goes on as ever.

The rule stands twice: here for one host, in `rlctl.safety.many.harm` for hosts in arrays.
`tests/safety/many/test_shield.py` holds the two equal to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import MOST_LOAD_RATIO, Quantile, Telemetry, Value
from rlctl.safety.gates import SlackGate
from rlctl.safety.growth import GrowthRate, SlackFloor, SlackHold
from rlctl.safety.guard import elapsed_seconds
from rlctl.safety.trust import Trust
from rlctl.safety.verdict import Bound

HELD_CPUS = 0.02
"""BE that uses no more is held, or has nothing to do: a miss beside it is not its doing."""

MOST_WINDOWS = 60.0
"""Windows of either kind that are remembered, the older ones ever less."""

CAUTION_RATIO = 0.9
"""So much of what the LC misses alone excuses what it misses beside BE."""

STALE_SECONDS, LEFT_RATIO = 900.0, 0.5
"""The control fades with this time constant; while so much of it is left it excuses. Then BE is tried anew, by a miss
that has BE held."""

LEAST_LOAD_RATIO = 0.9
"""What the LC missed alone excuses no miss at a smaller share of the load that it had then."""

LONGEST_SECONDS = 3600.0
"""The longest time for which BE is under the guards after harm, which doubles each time until then."""

WAIVED = (SlackGate, SlackFloor, SlackHold, GrowthRate)
"""Guards whose bounds do not hold a BE of the least weight without evidence of harm."""


@dataclass(frozen=True, slots=True)
class HarmRecord:
    """What is known of the LC's misses.

    Attributes:
        held_windows, held_missed_ratio, held_load_ratio: The control: windows with BE held, the share that was missed,
            and their mean load.
        free_windows, free_missed_ratio: Windows in which BE ran, and the share that was missed.
        held_seconds: For how long BE has been held until now.
        clean_seconds: Time since the last miss that BE can have caused, at most LONGEST_SECONDS.
        suspect_seconds: For how long the guards hold BE yet.
        sentence_seconds: For how long they did last, less the time since then in which BE was free.
        cleared: Whether nothing speaks against BE in this tick.
    """

    held_windows: float = 0.0
    held_missed_ratio: float = 0.0
    held_load_ratio: float = 0.0
    free_windows: float = 0.0
    free_missed_ratio: float = 0.0
    held_seconds: float = 0.0
    clean_seconds: float = LONGEST_SECONDS
    suspect_seconds: float = 0.0
    sentence_seconds: float = 0.0
    cleared: bool = False
    seen_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class HarmEvidence:
    """Judges whether BE harms the LC. It bounds nothing: what it clears BE of, other guards do not hold against it.

    Attributes:
        control_windows: Windows with BE held that must be known before a miss beside BE may count as the LC's own.
        missed_ratio: Slack below which a window is missed.
        high_ratio: Load above which it counts however it was read.
        again_seconds: Two misses within it that BE can have caused are harm.
        suspect_seconds: For how long the guards then hold BE, at first.
        gap_seconds: Most time that counts as passed between two readings.
    """

    control_windows: float
    missed_ratio: float
    high_ratio: float
    again_seconds: float
    suspect_seconds: float
    gap_seconds: float
    trust: Trust
    name: ClassVar[str] = "harm"

    def start(self) -> HarmRecord:
        """Nothing is known, and nothing is cleared before a reading."""
        return HarmRecord()

    def advance(self, memory: HarmRecord, telemetry: Telemetry) -> HarmRecord:
        """Count the window for BE or for the control, and judge."""
        now = telemetry.time_seconds
        passed = elapsed_seconds(memory.seen_seconds, now, self.gap_seconds)
        since = min(memory.clean_seconds + passed, LONGEST_SECONDS)
        held = _used_cpus(telemetry) <= HELD_CPUS
        held_seconds = min(memory.held_seconds + passed, LONGEST_SECONDS) if held else 0.0
        faded = memory.held_windows * (1.0 - min(passed / STALE_SECONDS, 1.0))
        memory = replace(
            memory, held_windows=faded, held_seconds=held_seconds, clean_seconds=since, cleared=False, seen_seconds=now
        )
        slack = self.trust.slack_ratio(telemetry)
        # A tick without a tail clears nobody, and no time of it counts.
        if slack is None:
            return memory
        if self.trust.idle(telemetry):
            left = max(memory.suspect_seconds - passed, 0.0)
            return replace(memory, suspect_seconds=left, cleared=True)
        window, missed = _overlapping_seconds(telemetry, passed), slack < self.missed_ratio
        load = self.trust.load_ratio(telemetry, self.high_ratio)
        load = load if load is not None and load <= MOST_LOAD_RATIO else None
        # The first windows after a freeze have what queued before it; they are no control.
        control = held and held_seconds - passed >= max(window - 0.5 * passed, 0.5 * passed) and passed > 0.0
        # Windows that overlap show one late request many times: each counts by what is new in it.
        weight = passed / max(window, passed) if passed > 0.0 else 0.0
        memory = _count(memory, weight, load, missed=missed, control=control, held=held)
        own = self._is_own(memory, load)
        again = since >= window - 0.5 * passed
        return self._judge(memory, passed, since, window, missed=missed and not control, own=own, again=again)

    def _is_own(self, memory: HarmRecord, load: float | None) -> bool:
        """Whether the LC misses no more beside BE than it does alone, as far as that is known."""
        enough = self.control_windows * (1.0 if memory.suspect_seconds > 0.0 else LEFT_RATIO)
        if load is None or memory.held_windows < enough:
            return False
        # m1 <= p0 n1 + sqrt(p0 n1): what the LC misses alone, and one standard deviation of that.
        alone = CAUTION_RATIO * memory.held_missed_ratio
        most = alone + math.sqrt(alone / max(memory.free_windows, 1.0))
        return memory.free_missed_ratio <= most and load >= LEAST_LOAD_RATIO * memory.held_load_ratio

    def _judge(
        self, memory: HarmRecord, passed: float, since: float, window: float, *, missed: bool, own: bool, again: bool
    ) -> HarmRecord:
        suspect, sentence, clean = memory.suspect_seconds, memory.sentence_seconds, since
        blamed = missed and not own and again
        if blamed:
            clean = 0.0
            if suspect > 0.0:
                suspect = sentence
            elif since <= max(self.again_seconds, 1.5 * window):
                # Twice as long each time: a host where no weight helps is tried ever more seldom.
                suspect = sentence = min(max(2.0 * sentence, self.suspect_seconds), LONGEST_SECONDS)
        elif suspect > 0.0 and own:
            suspect, sentence = 0.0, 0.5 * sentence
        elif not missed and suspect > 0.0:
            suspect = max(suspect - passed, 0.0)
        elif not missed:
            sentence = max(sentence - passed, 0.0)
        cleared = not blamed and suspect <= 0.0
        return replace(memory, suspect_seconds=suspect, sentence_seconds=sentence, clean_seconds=clean, cleared=cleared)

    def bound(self, memory: HarmRecord, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """No objection of its own."""


def _count(
    memory: HarmRecord, weight: float, load: float | None, *, missed: bool, control: bool, held: bool
) -> HarmRecord:
    """The memory with one more window, which counts by a weight of up to 1."""
    # mean <- mean + (x - mean) w / n, where n grows to MOST_WINDOWS: from there on the older ones fade.
    if control and load is not None and weight > 0.0:
        windows = min(memory.held_windows + weight, MOST_WINDOWS)
        step = weight / windows
        return replace(
            memory,
            held_windows=windows,
            held_missed_ratio=memory.held_missed_ratio + step * (missed - memory.held_missed_ratio),
            held_load_ratio=memory.held_load_ratio + step * (load - memory.held_load_ratio),
        )
    if not held and weight > 0.0:
        windows = min(memory.free_windows + weight, MOST_WINDOWS)
        step = weight / windows
        ratio = memory.free_missed_ratio + step * (missed - memory.free_missed_ratio)
        return replace(memory, free_windows=windows, free_missed_ratio=ratio)
    return memory


def _used_cpus(telemetry: Telemetry) -> float:
    """What BE used in the window; without bounds where that is not known, for it may have run."""
    used = telemetry.be_cpus
    return used.value if isinstance(used, Value) and used.value >= 0.0 else math.inf


def _overlapping_seconds(telemetry: Telemetry, passed_seconds: float) -> float:
    """How long the window of the tail is, where it reaches well into the one before; else 0."""
    tail = telemetry.tail_latency_seconds
    window = tail.window_seconds if isinstance(tail, Quantile) else 0.0
    return window if 1.5 * passed_seconds < window <= LONGEST_SECONDS else 0.0
