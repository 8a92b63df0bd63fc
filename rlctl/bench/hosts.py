"""Managers side by side on the live hosts of a Ray cluster: each repeat on one host, all of them at work at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rlctl.bench.live import Outcome, Plan, run_once, this_host, with_model
from rlctl.bench.score import LiveRun, Score, score
from rlctl.envs.errors import RlctlError
from rlctl.envs.testbed.session import Testbed, TestbedSpec
from rlctl.envs.testbed.workloads import Work
from rlctl.work.progress import say as log

if TYPE_CHECKING:
    from rlctl.agents.training.cluster.nodes import Cluster

__all__ = ["Alone", "HostsOutcome", "Measured", "OnTestbed", "measure_on_hosts"]


@dataclass(frozen=True, slots=True)
class Alone:
    """What begins a repeat: BE running alone, and the host it ran on."""

    solo: Work
    max_load_rps: float
    host: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a manager."""

    run: LiveRun
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class OnTestbed:
    """What a host does: it starts its testbed, and then one thing at a time.

    Attributes:
        plan: What is measured.
        testbed: What starts it.
    """

    plan: Plan
    testbed: Callable[[TestbedSpec, Callable[[str], None]], AbstractContextManager[Testbed]] = Testbed

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Callable[[str], Alone | Measured]]:
        """Yields what runs a manager by its name; none is BE alone, which comes first.

        What it says goes to the worker's log, which `rlctl -v` shows on the driver.
        """
        with self.testbed(self.plan.scenario.testbed(), log) as bed:
            plan, solo = with_model(self.plan, bed, log), Work(0.0, 0.0)

            def step(manager: str) -> Alone | Measured:
                nonlocal solo
                if not manager:
                    solo = bed.solo()
                    return Alone(solo, bed.slo.max_load_rps, this_host())
                policy = plan.policy(manager)
                return Measured(run_once(plan, bed, policy, solo), policy.remarks)

            yield step


@dataclass(frozen=True, slots=True)
class HostsOutcome:
    """What came of a plan on several hosts.

    Attributes:
        plan: The plan.
        hosts: What each measured, by its name.
        interrupted: Why it ended early; empty when it is complete.
        notes: What became of hosts that were lost or not used.
    """

    plan: Plan
    hosts: Mapping[str, Outcome]
    interrupted: str = ""
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[LiveRun, ...]:
        """Of all hosts."""
        return tuple(run for one in self.hosts.values() for run in one.runs)

    @property
    def remarks(self) -> dict[str, tuple[str, ...]]:
        """What a reader of a manager's row must know."""
        return {name: said for one in self.hosts.values() for name, said in one.remarks.items()}

    @property
    def scores(self) -> dict[str, Score]:
        """Scores by manager over all hosts, which are the strata of the intervals."""
        return {name: score(runs, hosts) for name in self.plan.managers for runs, hosts in [self._of(name)] if runs}

    @property
    def missing(self) -> dict[str, int]:
        """Runs that were asked for and not measured, by manager; those without any are left out."""
        counts = {name: self.plan.repeats - len(self._of(name)[0]) for name in self.plan.managers}
        return {name: count for name, count in counts.items() if count}

    @property
    def caption(self) -> str:
        """What a table of this outcome has to say beneath it."""
        loads = ", ".join(f"{name} {one.max_load_rps:.0f} rps" for name, one in self.hosts.items())
        missing = ", ".join(f"{name} {count}" for name, count in self.missing.items())
        said = [
            self.plan.described(f"maximum load on {loads}"),
            "Hosts are strata: the intervals are about these, not about others." if len(self.hosts) > 1 else "",
            f"MISSING runs: {missing}." if missing else "",
            f"INCOMPLETE: {self.interrupted}" if self.interrupted else "",
        ]
        return " ".join(filter(None, said))

    def as_json(self) -> dict[str, object]:
        """The contract's JSON, pooled, and under `hosts` what each measured by itself."""
        own = ("max_load_rps", "solo_rate", "host", "managers")
        each = {name: one.as_json() for name, one in self.hosts.items()}
        shared = {key: value for key, value in next(iter(each.values())).items() if key not in own}
        return {
            **shared,
            "repeats": self.plan.repeats,
            "interrupted": self.interrupted,
            "missing": self.missing,
            "notes": list(self.notes),
            "managers": {
                name: {**one.as_json(), "remarks": list(self.remarks.get(name, ()))}
                for name, one in self.scores.items()
            },
            "hosts": {
                name: {"repeats": len(self.hosts[name].solos), **{key: one[key] for key in own}}
                for name, one in each.items()
            },
        }

    def _of(self, manager: str) -> tuple[list[LiveRun], list[str]]:
        """A manager's runs, and the host of each."""
        found = [(run, name) for name, one in self.hosts.items() for run in one.runs if run.manager == manager]
        return [run for run, _ in found], [name for _, name in found]


@dataclass(slots=True)
class _Repeat:
    """One repeat on one host, as far as it got."""

    host: str
    alone: Alone
    measured: list[Measured] = field(default_factory=list)


def measure_on_hosts(
    plan: Plan,
    cluster: Cluster,
    done: Callable[[str, int], None] = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
    *,
    hold: OnTestbed | None = None,
) -> HostsOutcome:
    """Run the plan on all hosts of a cluster that offer a live testbed; each takes the next repeat when it is free.

    A repeat that lost its host is done anew on one host, and counts in one piece. Where that did not come to its end
    either, the longest piece counts.

    Args:
        plan: What to measure; its repeats are shared out.
        cluster: The one that we are connected to.
        done: Called after each run with the manager's name and the repeat, for progress.
        say: Takes a line on what became of a host.
        hold: What a host does; None is the plan on its testbed.

    Raises:
        RlctlError: Nothing was measured, for this reason. Later ones are told in the outcome.
    """
    from rlctl.agents.training.cluster.blocks import map_blocks

    repeats: dict[int, list[_Repeat]] = {}
    notes: list[str] = []
    interrupted = ""

    def note(line: str) -> None:
        notes.append(line)
        say(line)

    blocks = [("", *plan.order(repeat)) for repeat in range(plan.repeats)]
    try:
        with contextlib.closing(map_blocks(cluster, hold or OnTestbed(plan), blocks, note)) as results:
            for came in results:
                _take(repeats, came.block, came.host, came.result, say)
                if came.step:
                    done(blocks[came.block][came.step], came.block)
    except (RlctlError, KeyboardInterrupt) as error:
        if not any(one.measured for tries in repeats.values() for one in tries):
            raise
        interrupted = str(error) or "Ctrl-C"
    kept = {number: max(tries, key=lambda one: len(one.measured)) for number, tries in sorted(repeats.items())}
    if dropped := sum(len(one.measured) for tries in repeats.values() for one in tries) - sum(
        len(one.measured) for one in kept.values()
    ):
        note(f"runs that do not count, as their repeat was done anew: {dropped}")
    return HostsOutcome(plan, _by_host(plan, list(kept.values())), interrupted, tuple(notes))


def _take(
    repeats: dict[int, list[_Repeat]], number: int, host: str, result: Alone | Measured, say: Callable[[str], None]
) -> None:
    if isinstance(result, Alone):
        if all(one.host != host for tries in repeats.values() for one in tries):
            say(f"{host}: maximum load {result.max_load_rps:.0f} rps")
        repeats.setdefault(number, []).append(_Repeat(host, result))
    else:
        repeats[number][-1].measured.append(result)


def _by_host(plan: Plan, repeats: Sequence[_Repeat]) -> dict[str, Outcome]:
    """What each host measured."""
    begun = [one for one in repeats if one.measured]
    return {host: _outcome(plan, [one for one in begun if one.host == host]) for host in {one.host: 0 for one in begun}}


def _outcome(plan: Plan, repeats: Sequence[_Repeat]) -> Outcome:
    runs = [one for repeat in repeats for one in repeat.measured]
    return Outcome(
        plan=replace(plan, repeats=len(repeats)),
        runs=tuple(one.run for one in runs),
        max_load_rps=repeats[0].alone.max_load_rps,
        solos=tuple(one.alone.solo for one in repeats),
        remarks={one.run.manager: one.remarks for one in runs},
        host=repeats[0].alone.host,
    )
