"""Live benchmarks on this host, or on all hosts of a Ray cluster that offer a testbed, each repeat on one of them."""

from __future__ import annotations

import contextlib
import math
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from rlctl.agents.training.cluster.connection import connected, require_ray
from rlctl.agents.training.cluster.nodes import StepResult
from rlctl.bench.rounds import LiveRound, LiveRounds
from rlctl.bench.score import LiveRun, Score, SimOutcome, held_percent, score
from rlctl.bench.testbed import Alone, LivePlan, Measured, OnTestbed
from rlctl.bench.workforce import kept_at_signals
from rlctl.envs.errors import RlctlError
from rlctl.log.progress import say

FULL_RATIO = 0.9
"""Share of a link or disk that BE fills, unless its own CPU time ends first; the rest is headers and measurement."""

ALONE_PERCENT = 90.0
"""QoS of an LC without BE below which a table says little about managers."""

THIS_HOST = ""
"""Name of the host where there is no cluster."""

Step = StepResult[Alone | Measured]
"""Step 0 is BE alone, which begins a repeat; then managers in the repeat's order."""

Done = Callable[[str, int], None]
"""Called after each run with the manager's name and the repeat, for progress."""


@dataclass(slots=True)
class Repeat:
    """One repeat on one host, as far as it got."""

    host: str
    alone: Alone
    measured: list[Measured] = field(default_factory=list)

    @property
    def alone_cpu_seconds(self) -> float:
        """The LC's CPU time by its requests with BE absent, as under `frozen`; nan where it did not take part."""
        runs = [one.run for one in self.measured if one.run.manager == "frozen"]
        return runs[0].request_cpu_seconds if runs else math.nan

    @property
    def round(self) -> LiveRound:
        """What each manager had in it."""
        runs = [one.run for one in self.measured]
        return LiveRound(
            host=self.host,
            qos_percent={run.manager: round(held_percent(run), 4) for run in runs},
            be_percent={run.manager: round(100.0 * run.be_work_ratio, 4) for run in runs},
        )


@dataclass(frozen=True, slots=True)
class LiveOutcome:
    """What came of a plan, or what one host had of it.

    Attributes:
        repeats: Those that were begun, at least one, host by host; without a cluster all on THIS_HOST.
        interrupted: Why it ended early; empty where it did not.
        notes: What a reader must know of hosts that were lost.
    """

    plan: LivePlan
    repeats: tuple[Repeat, ...]
    interrupted: str = ""
    notes: tuple[str, ...] = ()

    @property
    def scenario(self) -> str:
        """Name of the scenario."""
        return self.plan.scenario.name

    @property
    def hosts(self) -> dict[str, LiveOutcome]:
        """What each host measured, by its name."""
        names = dict.fromkeys(repeat.host for repeat in self.repeats)
        return {name: replace(self, repeats=tuple(one for one in self.repeats if one.host == name)) for name in names}

    @property
    def runs(self) -> tuple[LiveRun, ...]:
        """All runs, in the order of time within each repeat."""
        return tuple(measured.run for repeat in self.repeats for measured in repeat.measured)

    @property
    def max_loads_rps(self) -> tuple[float, ...]:
        """The LC's maximum load, repeat by repeat."""
        return tuple(repeat.alone.max_load_rps for repeat in self.repeats)

    @property
    def search_ended(self) -> bool:
        """Whether one is only where the search ends."""
        return any(map(self.plan.scenario.knee.ends_at, self.max_loads_rps))

    @property
    def solo_rate(self) -> float:
        """BE's work a second while it was alone, mean of the repeats."""
        return fmean(repeat.alone.work.rate for repeat in self.repeats)

    @property
    def remarks(self) -> dict[str, tuple[str, ...]]:
        """What a reader of a manager's row must know; of which host, where not all of them say it."""
        told: dict[str, dict[str, dict[str, None]]] = {}
        for repeat in self.repeats:
            for one in repeat.measured:
                for remark in one.remarks:
                    told.setdefault(one.run.manager, {}).setdefault(remark, {})[repeat.host] = None
        everywhere = len(self.hosts)
        return {
            name: tuple(
                remark if len(hosts) == everywhere else f"{', '.join(hosts)}: {remark}" for remark, hosts in own.items()
            )
            for name, own in told.items()
        }

    @property
    def scores(self) -> dict[str, Score]:
        """Scores by manager, in the plan's order, over all hosts, which are the strata of the intervals.

        Those that were not reached are absent.
        """
        scores = {}
        for name in self.plan.managers:
            runs = [
                (one.run, repeat.host, repeat.alone_cpu_seconds)
                for repeat in self.repeats
                for one in repeat.measured
                if one.run.manager == name
            ]
            if runs:
                own, strata, alone = zip(*runs, strict=True)
                scores[name] = score(own, strata if len(self.hosts) > 1 else (), alone)
        return scores

    @property
    def missing(self) -> dict[str, int]:
        """Number of planned runs that were not measured, by manager; managers without any are left out."""
        runs = [run.manager for run in self.runs]
        counts = {name: self.plan.repeats - runs.count(name) for name in self.plan.managers}
        return {name: count for name, count in counts.items() if count}

    @property
    def caption(self) -> str:
        """What a table of this outcome has to say beneath it."""
        loads = {name: spread(host.max_loads_rps, ended=host.search_ended) for name, host in self.hosts.items()}
        on_hosts = ", ".join(f"{name} {load}" for name, load in loads.items())
        missing = ", ".join(f"{name} {count}" for name, count in self.missing.items())
        doubts = (doubt(self.plan, host.solo_rate, name) for name, host in self.hosts.items())
        sentences = [
            self.plan.described(f"maximum load {loads.get(THIS_HOST, f'on {on_hosts}')}"),
            *doubts,
            doubt_of_load(self.scores),
            "Hosts are strata: the intervals are about these, not about others." if len(self.hosts) > 1 else "",
            f"MISSING runs: {missing}." if missing else "",
            f"INCOMPLETE: {self.interrupted}" if self.interrupted else "",
        ]
        return " ".join(filter(None, sentences))

    @property
    def by_round(self) -> LiveRounds:
        """The same round by round."""
        return LiveRounds.model_validate(self.as_json())

    def as_json(self) -> dict[str, object]:
        """For `rlctl bench --json`; of a cluster pooled, and under `hosts` what each measured by itself."""
        plan, scenario = self.plan, self.plan.scenario
        shared: dict[str, object] = {
            "schema": 1,
            "plant": "host",
            "scenario": scenario.name,
            "repeats": plan.repeats,
            "shield": plan.profile.name,
            "shield_digest": plan.profile.digest,
            "duration_seconds": scenario.duration_seconds,
            "tick_seconds": scenario.tick_seconds,
            "target_milliseconds": scenario.slo.target_milliseconds,
            "time_scale": scenario.time_scale,
            "core_cpus": scenario.core_cpus,
            "be_weight": scenario.be.weight,
            "adapt_seconds": plan.adapt_seconds,
            "interrupted": self.interrupted,
            "missing": self.missing,
            "notes": list(self.notes),
            "rounds": [repeat.round.model_dump() for repeat in self.repeats],
        }
        if THIS_HOST in self.hosts:
            return {**shared, **self._host_as_json()}
        hosts = {name: {"repeats": len(host.repeats), **host._host_as_json()} for name, host in self.hosts.items()}
        return {**shared, "managers": self._managers_as_json(), "hosts": hosts}

    def _host_as_json(self) -> dict[str, object]:
        """What is one host's own."""
        return {
            "max_load_rps": round(fmean(self.max_loads_rps), 1),
            "max_loads_rps": [round(load, 1) for load in self.max_loads_rps],
            "search_ended": self.search_ended,
            "solo_rate": round(self.solo_rate, 2),
            "host": dict(self.repeats[0].alone.host),
            "managers": self._managers_as_json(),
        }

    def _managers_as_json(self) -> dict[str, object]:
        """Scores by manager with BE's CPU weight under it, and its remarks."""
        weights, remarks = self.plan.weights, self.remarks
        return {
            name: {**each.as_json(), "be_weight": weights[name], "remarks": list(remarks.get(name, ()))}
            for name, each in self.scores.items()
        }


def spread(max_loads_rps: Sequence[float], *, ended: bool = False) -> str:
    """The maximum load in words, from the smallest of the repeats to the largest, and whether a search ended there."""
    ends = dict.fromkeys(f"{pick(max_loads_rps):.0f}" for pick in (min, max))
    return f"{' to '.join(ends)} rps{' (end of the search)' if ended else ''}"


def doubt(plan: LivePlan, solo_rate: float, host: str) -> str:
    """A sentence where BE is too slow on a host to fill what it shares with the LC: kernel weights hold such a BE."""
    if (provisioned := plan.scenario.provisioned) is None or solo_rate >= FULL_RATIO * provisioned[1]:
        return ""
    what, capacity = provisioned
    return (
        f"{host or 'This host'} is too slow for this scenario: BE alone moves {solo_rate / 1e6:.1f} of the {what}'s "
        f"{capacity / 1e6:.1f} MB/s, so its CPU time is scarce before the {what} is. "
        f"Give a copy of the scenario's file a slower {what}."
    )


def doubt_of_load(scores: Mapping[str, Score]) -> str:
    """A sentence where the LC missed windows without any BE: on a busy machine a maximum load holds for minutes."""
    if "frozen" not in scores or (held := scores["frozen"].qos_guarantee_percent.mean) >= ALONE_PERCENT:
        return ""
    return (
        f"The LC alone (frozen) missed {100.0 - held:.0f} % of the windows, which is no manager's doing: its "
        "maximum load is of better minutes. Points of QoS by which managers differ may be chance; run it again."
    )


@contextlib.contextmanager
def live_hosts(address: str | None = None, *, logs: bool = False) -> Iterator[Callable[[LivePlan, Done], LiveOutcome]]:
    """What measures live plans: this host, or while connected to a cluster its hosts that offer a testbed.

    Args:
        address: As `rlctl.agents.training.cluster.connection.connected` takes it; None for this host without Ray.

    Raises:
        ConfigError: Ray is not installed, the address is none, or a node has another rlctl.
        HostError: Nobody answers there.
    """
    if address is None:
        with kept_at_signals():
            yield lambda plan, done: collected(plan, lambda blocks, _: _here(OnTestbed(plan), blocks), done)
        return
    require_ray()
    from rlctl.agents.training.cluster.blocks import LIVE_TESTBED, map_blocks

    with kept_at_signals(), connected(address, resources=LIVE_TESTBED, logs=logs) as cluster:
        hosts = sum(node.holds(LIVE_TESTBED) for node in cluster.nodes)
        say(
            f"Ray at {address}: nodes: {len(cluster.nodes)}, live testbeds: {hosts}; each starts, and searches its "
            "maximum load, for a minute or two"
        )

        def measure(plan: LivePlan, done: Done) -> LiveOutcome:
            if hosts > 1 and plan.repeats < 2 * hosts:
                say(f"{plan.repeats} repeats on {hosts} hosts leave no interval or a wide one: --repeats {2 * hosts}")
            return collected(plan, lambda blocks, note: map_blocks(cluster, OnTestbed(plan), blocks, note), done)

        yield measure


def _here(hold: OnTestbed, blocks: Sequence[Sequence[str]]) -> Generator[Step, None, None]:
    """All repeats on this host, as `map_blocks` does them on a cluster."""
    with hold() as step:
        for number, block in enumerate(blocks):
            for place, manager in enumerate(block):
                yield StepResult(THIS_HOST, number, place, step(manager))


def collected(
    plan: LivePlan,
    begin: Callable[[Sequence[Sequence[str]], Callable[[str], None]], Generator[Step, None, None]],
    done: Done = lambda *_: None,
) -> LiveOutcome:
    """Run the plan's repeats and collect what was measured.

    A repeat that lost its host is done anew on one host, and counts in one piece. Where that did not come to its end
    either, the longest piece counts.

    Args:
        begin: Takes the steps of each repeat, and what notes a line on a host that was lost; gives the results.

    Raises:
        RlctlError, OSError: Nothing was measured, for this reason. A later error, or Ctrl-C, ends the plan early and
            is told in the outcome: hours of measurement are not lost to a failure of the last run.
    """
    repeats: dict[int, list[Repeat]] = {}
    notes: list[str] = []
    interrupted = ""

    def note(line: str) -> None:
        notes.append(line)
        say(line)

    blocks = [("", *plan.order(repeat)) for repeat in range(plan.repeats)]
    try:
        with contextlib.closing(begin(blocks, note)) as steps:
            for step in steps:
                _add(plan, repeats, step)
                if step.step:
                    done(blocks[step.block][step.step], step.block)
    except (RlctlError, OSError, ValueError, subprocess.SubprocessError, KeyboardInterrupt) as error:
        if not any(repeat.measured for tries in repeats.values() for repeat in tries):
            raise
        interrupted = str(error) or "Ctrl-C"
    longest = [max(tries, key=lambda repeat: len(repeat.measured)) for _, tries in sorted(repeats.items())]
    all_runs = sum(len(repeat.measured) for tries in repeats.values() for repeat in tries)
    if dropped := all_runs - sum(len(repeat.measured) for repeat in longest):
        note(f"runs that do not count, as their repeat was done anew: {dropped}")
    begun = [repeat for repeat in longest if repeat.measured]
    hosts = list(dict.fromkeys(repeat.host for repeat in begun))
    by_host = sorted(begun, key=lambda repeat: hosts.index(repeat.host))
    return LiveOutcome(plan, tuple(by_host), interrupted, tuple(notes))


def _add(plan: LivePlan, repeats: dict[int, list[Repeat]], step: Step) -> None:
    result = step.result
    if isinstance(result, Measured):
        repeats[step.block][-1].measured.append(result)
        return
    if all(repeat.host != step.host for tries in repeats.values() for repeat in tries):
        if step.host != THIS_HOST:
            say(f"{step.host}: maximum load {result.max_load_rps:.0f} rps")
        if line := doubt(plan, result.work.rate, step.host):
            say(line)
    repeats.setdefault(step.block, []).append(Repeat(step.host, result))


def results_as_json(outcomes: Sequence[LiveOutcome | SimOutcome]) -> dict[str, object]:
    """For `rlctl bench --json`: one scenario by itself, several under `scenarios` by name."""
    if len(outcomes) == 1:
        return outcomes[0].as_json()
    return {"schema": 1, "scenarios": {outcome.scenario: outcome.as_json() for outcome in outcomes}}
