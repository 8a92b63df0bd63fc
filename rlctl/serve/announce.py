"""What the log says of a policy, its shield and this host before the first tick."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from rlctl.agents.policy import Policy
from rlctl.config.serve import ServeConfig
from rlctl.envs.actions import RISE_RATIO
from rlctl.envs.allocation import Limits
from rlctl.envs.host.latency.waiting import WaitingSource
from rlctl.envs.host.live import LiveHost
from rlctl.safety.shield import Shield

log = logging.getLogger("rlctl.serve")


def tell_absent(absent: Mapping[str, str]) -> None:
    """Log the readings that there will never be."""
    by_reason: dict[str, list[str]] = {}
    for name in sorted(absent):
        by_reason.setdefault(absent[name], []).append(name)
    if by_reason:
        reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
        log.info("missing readings: %s", reasons)


def lacking(policy: Policy, absent: Mapping[str, str]) -> Iterator[str]:
    """A line for each reading that a policy needs and will never have."""
    for name in policy.needs:
        if name in absent:
            yield f"policy {policy.name} needs {name}, which is missing: {absent[name]}"


def untrained_shield(policy: Policy, shield: Shield) -> str:
    """That a learned policy never met this shield in training, in one line; empty where it did or nothing is known.

    No reason to refuse it: the shield's word is the last one, whoever it was that the policy learned with.
    """
    met = policy.trained_with
    # Under guards that evidence of harm waives it meets none that it does not know.
    if not met or {shield.digest, shield.profile.strict_digest} & met.keys():
        return ""
    now = f"{shield.profile.name} ({shield.digest})"
    return f"policy {policy.name} was trained with shield {', '.join(met.values())}, not with {now}"


def too_slow_a_rise(policy: Policy, shield: Shield, tick_seconds: float) -> str:
    """That the shield allows less growth in a tick than a move of a masked policy asks for; empty where it does not.

    Such a policy is not told of moves that the shield would cut, and so never asks for more than small levels.
    """
    # The growth guard counts no more of a longer tick.
    gap_seconds = shield.profile.growth_gap_seconds
    grown = shield.profile.growth_ratio_per_second * min(tick_seconds, gap_seconds)
    if not policy.masked or grown >= RISE_RATIO:
        return ""
    least = RISE_RATIO / shield.profile.growth_ratio_per_second
    longer = f"tick_seconds of {least:.2g} or more" if least <= gap_seconds else "another shield"
    return (
        f"policy {policy.name} rises by {100 * RISE_RATIO:g} % of BE's CPUs a tick, and shield {shield.profile.name} "
        f"allows {100 * grown:.2g}: BE stays small; take {longer}, or another policy"
    )


def start_screen(config: ServeConfig, host: LiveHost) -> Iterator[str]:
    """What is served, by which figures, and what may be written: a line each, for people."""
    for name, lc in config.lcs.items():
        slo, most = lc.slo, lc.slo.max_load_rps
        load = "maximum load is learned" if most == "auto" else f"maximum load {most:g} requests a second"
        target = "auto" if slo.target_milliseconds == "auto" else f"{slo.target_milliseconds:g} ms"
        goal = f"p{slo.quantile_percent:g} to stay below {target}; latency from {_in_words(lc.latency)}"
        source = host.watch.lcs[name].source if host.watch else None
        if isinstance(source, WaitingSource):
            goal = f"no latency is known: {source.name}"
        yield f"LC {name}: {_in_words(lc.workload)}; {goal}; {load}"
    groups, knobs = host.actuator.groups, host.actuator.controls
    written = ", ".join(word for knob, word in KNOB_WORDS.items() if knob in knobs) or "nothing"
    which = ", ".join(group.name for group in groups[:3]) + (f" and {len(groups) - 3} more" if len(groups) > 3 else "")
    share = host.actuator.effective_share()
    weight = "" if share is None else f"; its weight gives it {share:.2%} of a CPU that the LC wants too"
    reins = ", ".join(host.reins.all if host.reins.moves() else host.reins.all[:1])
    yield f"BE: {which}; rlctl may write {written}; its level may move {reins}{weight}"
    yield f"state in {config.state_directory}, ticks in {config.log.directory}; `rlctl -v serve` says every setting"


KNOB_WORDS = {"cpu": "its quota and weight", "cpuset": "its CPUs", "freezer": "its freezer"}


def _in_words(section: BaseModel) -> str:
    """A section that names something: its kind, and what the file says beside it."""
    told = section.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    kind = getattr(section, "kind", "")
    return " ".join([str(kind), *(str(value) for value in told.values() if isinstance(value, str | int | float))])


def range_in_words(limits: Limits) -> str:
    """What BE may get on this host, and what the LC has."""
    cpus = "1 CPU" if limits.cpus == 1 else f"{limits.cpus} CPUs"
    quota = f"a quota of {limits.min_quota_cpus:g} CPU and more, in {limits.levels} levels"
    held = "" if limits.can_freeze else "; it is held by that quota and never suspended (be.hold: quota)"
    return f"BE may get {cpus}, {quota}{held}; the LC has {limits.lc_cpus:g}"
