"""Who decided a tick and why, and what the LC waits for: the same words in the log, `rlctl why` and `rlctl top`."""

from __future__ import annotations

from collections.abc import Mapping

from rlctl.envs.allocation import LITTLE_CPUS, Allocation
from rlctl.envs.errors import printable
from rlctl.envs.reins import WORTH_RATIO, Rein, waits_of
from rlctl.envs.telemetry import Telemetry, number
from rlctl.log.record import Tick
from rlctl.safety.verdict import OF_SERVICE, Bound, Reason

REASONS: Mapping[Reason, str] = {
    Reason.LATENCY_MISSING: "the LC's latency is missing",
    Reason.LATENCY_STALE: "the LC's latency is too old",
    Reason.TOO_FEW_SAMPLES: "too few requests to judge the LC's latency",
    Reason.LOAD_MISSING: "the LC's load is missing",
    Reason.LC_DEAD: "the LC has no running process",
    Reason.ABSURD: "a reading cannot be true",
    Reason.LOAD_HIGH: "the LC's load is too high",
    Reason.LOAD_UNKNOWN: "the LC's load is not known yet",
    Reason.SLACK_NEGATIVE: "the LC missed its target",
    Reason.COOLING_DOWN: "BE stays suspended for a while after a missed target",
    Reason.SLACK_TINY: "the LC is close to its target",
    Reason.SLACK_SMALL: "the LC is too close to its target for BE to grow",
    Reason.SLACK_UNKNOWN: "the LC's slack is not known yet",
    Reason.MEMORY_PRESSURE: "the LC waits for memory",
    Reason.MEMORY_BANDWIDTH: "the memory bandwidth is nearly used up",
    Reason.BE_OVERRUN: "BE uses more CPU time than it may",
    Reason.GROWTH_RATE: "BE may grow only step by step",
    Reason.CEILING: "BE has all that the safety profile allows",
    Reason.OPERATOR: "an operator holds BE",
    Reason.SCHEDULE: "the schedule holds BE",
    Reason.ERROR_BUDGET: "the LC's error budget is spent, or is being spent too fast",
    Reason.TARGET_WATCH: "BE is held for some seconds, which show the LC's own tail (target auto)",
    Reason.NOT_APPROVED: "the policy waits for approval",
}
"""Every reason but `own-rule`, of which only the guard's own detail can say more."""


HELP: Mapping[str, str] = {
    "a CPU": "`be.cpus` without the LC's CPUs, or `be.weight: idle`, keeps BE off them",
    "its disk": "`be.reins` with disk, and an I/O controller for BE's group, hold BE there",
    "memory": "`resources.lc_memory_low_bytes` keeps the LC's, `be_memory_high_bytes` bounds BE's",
    "its link": "`be.reins` with link, and `be.link` where the interface is not found, hold BE there",
}
"""What an LC can wait for, and the setting for that."""

ALONE = "not behind BE, which uses next to nothing; the LC needs more CPUs, or a greater weight than others"


def decision_sentence(tick: Tick) -> str:
    """Who decided this tick or tightened what was asked for, and the main reason."""
    if tick.be_vanished:
        return "no BE group is left"
    if tick.why_safe:
        return f"the control loop applied the safe allocation: {printable(tick.why_safe)}"
    policy, acting = printable(tick.policy), printable(tick.acting or tick.policy)
    decider = f"policy {policy}" if acting == policy else f"{acting} (in place of policy {policy})"
    cause = tick.verdict.cause()
    if cause is None:
        return f"{decider} decided" + (f": {printable(tick.note)}" if tick.note else "")
    because = reason_sentence(cause)
    if not tick.verdict.overridden:
        return f"{decider} decided, and the shield allows no more: {because}"
    who = "the service" if cause.reason in OF_SERVICE else "the shield"
    return f"{who} tightened {decider}: {because}"


def reason_sentence(bound: Bound) -> str:
    """Why a guard restricts BE."""
    return REASONS.get(bound.reason) or f"guard {printable(bound.guard)}" + (
        f": {printable(bound.detail)}" if bound.detail else ""
    )


def reason_code(bound: Bound) -> str:
    """Guard and reason as metrics and documentation name them, once where both are the same."""
    return printable(bound.guard if bound.guard == bound.reason else f"{bound.guard}: {bound.reason}")


def on_rein(telemetry: Telemetry) -> str:
    """On what BE's level is, where that is not the CPUs."""
    return "" if telemetry.rein == Rein.CPU else f" on its {telemetry.rein}"


def change_sentence(before: Allocation, applied: Allocation) -> str:
    """What BE got instead of what it had."""
    if applied.frozen:
        return "BE frozen" if not before.frozen else f"BE stays frozen, at {applied}"
    if before.frozen:
        return f"BE thawed at {applied}"
    verb = "reduced" if applied.at_most(before) else "raised" if before.at_most(applied) else "changed"
    return f"BE {verb} from {before} to {applied}"


def waiting_sentence(telemetry: Telemetry, *, frozen: bool = False) -> str:
    """What the LC waits for most, and the setting that helps, or that none does; empty where it hardly waits."""
    what, share = next(iter(waits_of(telemetry).items()), ("", 0.0))
    if share < WORTH_RATIO:
        return ""
    used = 0.0 if frozen else number(telemetry.be_cpus)
    helps = ALONE if what == "a CPU" and used is not None and used < LITTLE_CPUS else HELP[what]
    of = "of its requests" if what == "its link" else "of the time"
    return f"the LC waits for {what} {share:.0%} {of}: {helps}"
