"""The evidence that BE harms the LC: misses while BE runs, beside those while BE is held, which are the LC's own.

Where BE has the kernel's least weight, and that weight counts, BE is free until such evidence comes. `Shield` waives
the bounds of the slack guards and of the growth rate until then; what these guards remember goes on as ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.law import law
from rlctl.envs.reins import USE, is_mended
from rlctl.envs.telemetry import MOST_LOAD_RATIO, Quantile, Telemetry, Value, number
from rlctl.safety.constants import MOST_WINDOWS
from rlctl.safety.gates import SlackGate
from rlctl.safety.growth import GrowthRate, SlackFloor, SlackHold
from rlctl.safety.guard import elapsed_seconds
from rlctl.safety.trust import ProfileGuard
from rlctl.safety.verdict import Bound

HELD_CPUS = 0.02
"""BE that uses no more is held, or has nothing to do: a miss beside it is not its doing."""

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


class HarmRecord(NamedTuple):
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
        seen_seconds: Time of the last reading; NaN before the first.
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
    seen_seconds: float = math.nan


@law
def harm_after(
    memory: HarmRecord,
    now_seconds: float,
    slack: float,
    load: float,
    used_cpus: float,
    window_seconds: float,
    idle: bool,
    control_windows: float,
    missed_ratio: float,
    again_seconds: float,
    suspect_seconds: float,
    gap_seconds: float,
) -> HarmRecord:
    """Count the window for BE or for the control, and judge.

    Args:
        slack, load: To judge by; NaN for none.
        used_cpus: What BE used; without bounds where that is not known, for it may have run.
        window_seconds: How long the window of the tail is.
        idle: The LC is known to be idle.
        control_windows: Windows with BE held that must be known before a miss beside BE may count as the LC's own.
        missed_ratio: Slack below which a window is missed.
        again_seconds: Two misses within it that BE can have caused are harm.
        suspect_seconds: For how long the guards then hold BE, at first.
        gap_seconds: Most time that counts as passed between two readings.
    """
    passed = elapsed_seconds(memory.seen_seconds, now_seconds, gap_seconds)
    since = min(memory.clean_seconds + passed, LONGEST_SECONDS)
    held = 0.0 <= used_cpus <= HELD_CPUS
    held_seconds = min(memory.held_seconds + passed, LONGEST_SECONDS) if held else 0.0
    held_windows = memory.held_windows * (1.0 - min(passed / STALE_SECONDS, 1.0))
    held_missed, held_load = memory.held_missed_ratio, memory.held_load_ratio
    free_windows, free_missed = memory.free_windows, memory.free_missed_ratio
    suspect, sentence = memory.suspect_seconds, memory.sentence_seconds
    # A tick without a tail clears nobody, and no time of it counts.
    if math.isnan(slack) or idle:
        left = suspect if math.isnan(slack) else max(suspect - passed, 0.0)
        return HarmRecord(
            held_windows, held_missed, held_load, free_windows, free_missed, held_seconds, since, left, sentence,
            not math.isnan(slack), now_seconds,
        )  # fmt: skip
    # A window that reaches well into the one before overlaps it.
    window = window_seconds if 1.5 * passed < window_seconds <= LONGEST_SECONDS else 0.0
    missed, loaded = slack < missed_ratio, load <= MOST_LOAD_RATIO
    # The first windows after a freeze have what queued before it; they are no control.
    control = held and held_seconds - passed >= max(window - 0.5 * passed, 0.5 * passed) and passed > 0.0
    # Windows that overlap show one late request many times: each counts by what is new in it.
    weight = passed / max(window, passed) if passed > 0.0 else 0.0
    # mean <- mean + (x - mean) w / n, where n grows to MOST_WINDOWS: from there on the older ones fade.
    if control and loaded and weight > 0.0:
        held_windows = min(held_windows + weight, MOST_WINDOWS)
        held_missed += weight / held_windows * (missed - held_missed)
        held_load += weight / held_windows * (load - held_load)
    elif not held and weight > 0.0:
        free_windows = min(free_windows + weight, MOST_WINDOWS)
        free_missed += weight / free_windows * (missed - free_missed)
    # The miss is the LC's own where it misses no more beside BE than alone, as far as that is known:
    # m1 <= p0 n1 + sqrt(p0 n1): what the LC misses alone, and one standard deviation of that.
    enough = control_windows * (1.0 if suspect > 0.0 else LEFT_RATIO)
    alone = CAUTION_RATIO * held_missed
    most = alone + math.sqrt(alone / max(free_windows, 1.0))
    own = loaded and held_windows >= enough and free_missed <= most and load >= LEAST_LOAD_RATIO * held_load
    missed = missed and not control
    blamed, clean = missed and not own and since >= window - 0.5 * passed, since
    if blamed:
        clean = 0.0
        if suspect > 0.0:
            suspect = sentence
        elif since <= max(again_seconds, 1.5 * window):
            # Twice as long each time: a host where no weight helps is tried ever more seldom.
            suspect = sentence = min(max(2.0 * sentence, suspect_seconds), LONGEST_SECONDS)
    elif suspect > 0.0 and own:
        suspect, sentence = 0.0, 0.5 * sentence
    elif not missed and suspect > 0.0:
        suspect = max(suspect - passed, 0.0)
    elif not missed:
        sentence = max(sentence - passed, 0.0)
    return HarmRecord(
        held_windows, held_missed, held_load, free_windows, free_missed, held_seconds, clean, suspect, sentence,
        not blamed and suspect <= 0.0, now_seconds,
    )  # fmt: skip


@law
def excuse_of_rate(after: HarmRecord, sentence_before_seconds: float) -> HarmRecord:
    """What is known once a link or disk is seen to carry less: half of the sentence from before this window is left.

    BE's level was a share of more than that, and what it fell by is taken from BE. So what was late in the window
    before was no level's doing, nor is the backlog in this one.
    """
    return HarmRecord(
        after.held_windows, after.held_missed_ratio, after.held_load_ratio, after.free_windows,
        after.free_missed_ratio, after.held_seconds, LONGEST_SECONDS, 0.0, 0.5 * sentence_before_seconds, after.cleared,
        after.seen_seconds,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class HarmEvidence(ProfileGuard):
    """Judges whether BE harms the LC. It bounds nothing: what it clears BE of, other guards do not hold against it."""

    name: ClassVar[str] = "harm"

    def start(self) -> HarmRecord:
        """Nothing is known, and nothing is cleared before a reading."""
        return HarmRecord()

    def advance(self, memory: HarmRecord, telemetry: Telemetry) -> HarmRecord:
        """Count the window for BE or for the control, and judge."""
        tail, c = telemetry.tail_latency_seconds, self.constants
        after = harm_after(
            memory,
            telemetry.time_seconds,
            self.trust.slack_ratio(telemetry),
            self.trust.load_ratio(telemetry, c.load_suspend_ratio),
            _used_cpus(telemetry),
            window_seconds=tail.window_seconds if isinstance(tail, Quantile) else 0.0,
            idle=self.trust.idle(telemetry),
            control_windows=math.inf if c.control_windows is None else c.control_windows,
            missed_ratio=c.slack_suspend_ratio,
            again_seconds=c.forget_strikes_seconds,
            suspect_seconds=c.well_seconds,
            gap_seconds=c.gap_seconds,
        )
        return excuse_of_rate(after, memory.sentence_seconds) if is_mended(telemetry) else after

    def bound(self, memory: HarmRecord, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """No objection of its own."""


def _used_cpus(telemetry: Telemetry) -> float:
    """What BE used in the window; without bounds where that is not known, for it may have run.

    Of the link or the disks that is a share: whoever copies whole files needs next to no CPU for it, and is not held.
    """
    used = telemetry.be_cpus
    shares = [number(telemetry.counters[name]) for name in USE.values() if name in telemetry.counters]
    cpus = used.value if isinstance(used, Value) and used.value >= 0.0 else math.inf
    return max([cpus, *(math.inf if share is None else share for share in shares)])
