"""One run of a mix: all instances begin at one moment, managed or not, and what that took until the last one ends."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import TestbedError
from rlctl.envs.host.apps.launch import LaunchSite, forget, register
from rlctl.envs.host.apps.registry import Description, Registration, Registry
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.values import PERIOD_US, Quota
from rlctl.envs.host.resources.power import Energy, rapl_zones
from rlctl.envs.telemetry import Missing, Reading, Value
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Process
from rlctl.envs.testbed.session import ahead
from rlctl.serve.sharing import Sharing, SharingRules
from scripts.studies.mixes.holding import HoldingLauncher
from scripts.studies.mixes.metrics import metrics_of
from scripts.studies.mixes.perf_span import PerfSpan
from scripts.studies.mixes.plan import Record, Turn
from scripts.studies.mixes.platform import Ground
from scripts.studies.mixes.tunable import RESULT_BEGINS, TunableResult, parse_result

MOST_CHARACTERS = 1 << 16
"""Read of an instance's output; a command of the user's may write its result to standard output."""

TICK_SECONDS = 0.02
"""Between two looks of a manager that hears of ends at once; an application learns its first mode so late."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A process of a run under a unique name: the same command managed and not, with modes for the managed runs."""

    name: str
    command: tuple[str, ...]
    description: Description


class Arena:
    """Control groups in which mixes run, one run after the other. A context manager that leaves nothing behind.

    Managed and unmanaged runs have the same CPUs and the same CPU time. Unmanaged, all instances are in one group and
    the kernel schedules them as it likes; managed, each has a group of its own, which `Sharing` restricts.

    Args:
        leftover: As in `Sharing`: what becomes of CPU time that the chosen modes do not ask for.
    """

    def __init__(self, ground: Ground, leftover: str = "share", quota_period_us: int = PERIOD_US) -> None:
        self._ground, self._leftover, self._quota_period_us = ground, leftover, quota_period_us
        self._cpus: frozenset[int] = frozenset().union(*(cluster.cpus for cluster in ground.clusters))
        self._name = f"{ground.within}/rlctl-measure-{os.getpid()}".strip("/")
        self._stack = contextlib.ExitStack()
        self._layout: Layout
        self._janitor: Janitor
        self._runs = 0

    def __enter__(self) -> Self:
        """Make the groups.

        Raises:
            PermissionMissing: Not root.
            HostError: The host has no CPU controller, or a group of that name.
        """
        with contextlib.ExitStack() as stack:
            self._layout = Layout.detect()
            for controller in (CgroupController.CPU, CgroupController.CPUSET):
                self._layout.mount(controller)
            self._janitor = stack.enter_context(Janitor())
            self._top = self._group(stack, self._name)
            self._restrict(self._top)
            stack.enter_context(ahead())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs, and remove the groups."""
        self._stack.close()

    def run(self, turn: Turn, instances: Sequence[Instance]) -> Record:
        """Run all instances to their ends.

        Raises:
            TestbedError: One of them could not be run, ended with another exit code than 0, or is a benchmark that did
                not write what it has done.
            CgroupError: A control group did not take a write.
        """
        with contextlib.ExitStack() as stack:
            folder = self._janitor.make_folder()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self._runs += 1
            group = self._group(stack, f"{self._name}/{self._runs}-{'managed' if turn.managed else 'unmanaged'}")
            counters = stack.enter_context(PerfSpan(self._name))
            energy = stack.enter_context(contextlib.closing(Energy(rapl_zones())))
            launcher = stack.enter_context(HoldingLauncher(folder, group, self._janitor))
            manager = stack.enter_context(self._managed(group, folder)) if turn.managed else _Kernel(group)
            processes = {}
            for instance in instances:
                environment = manager.environment(instance)
                process = launcher.hold(instance.name, instance.command, environment, Path.cwd())
                manager.take(instance, process.pid)
                processes[instance.name] = process
            manager.tick(0.0)
            counters.begin()
            before = energy.joules()
            ended = _run_to_the_end(processes.values(), manager)
            metrics = metrics_of(max(ended.values()), _used(before, energy.joules()), counters.end())
            results = {name: asdict(result) for name in ended if (result := _result(processes[name]))}
            return Record(turn, metrics, ended, manager.placements, results)

    @contextlib.contextmanager
    def _managed(self, group: Group, folder: Path) -> Iterator[_Manager]:
        knobs = Knobs(None)
        place = LaunchSite(self._layout, group.name, Registry(folder / "apps"), knobs)
        sharing = Sharing(
            self._ground.clusters,
            group,
            knobs,
            registry=place.registry,
            rules=SharingRules(self._leftover, quota_period_us=self._quota_period_us),
        )
        with contextlib.closing(knobs):
            yield _Manager(sharing, place, Allocation(self._ground.quota_cpus, len(self._cpus)))

    def _group(self, stack: contextlib.ExitStack, name: str) -> Group:
        knobs = stack.enter_context(contextlib.closing(Knobs(None)))
        memory = (CgroupController.MEMORY,)  # as the applications have
        return stack.enter_context(self._janitor.group(self._layout, name, knobs, memory))

    def _restrict(self, group: Group) -> None:
        """Give a group the managed CPUs, and no more CPU time than the clusters have."""
        assert group.cpuset is not None
        assert group.cpu is not None
        group.cpuset.set_cpus(self._cpus)
        if self._ground.quota_cpus < len(self._cpus):
            group.cpu.set_quota(Quota.of_cpus(self._ground.quota_cpus))


def _used(before: float | Missing, after: float | Missing) -> Reading:
    """Joules between two readings, or why they are not known."""
    if isinstance(before, Missing) or isinstance(after, Missing):
        return before if isinstance(before, Missing) else after  # type: ignore[return-value] # one of them is
    return Value(after - before)


class _Kernel:
    """Nobody manages: all are in one group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.placements: list[tuple[float, Mapping[str, Sequence[object]]]] = []

    tick_seconds: float | None = None
    """How often it wants to look; None for never."""

    def environment(self, instance: Instance) -> Mapping[str, str]:  # noqa: ARG002
        """What an instance finds in its environment."""
        return {}

    def take(self, instance: Instance, pid: int) -> None:  # noqa: ARG002
        """An instance is about to begin."""
        self._group.attach(pid)

    def ended(self, name: str) -> None:
        """An instance has ended."""

    def tick(self, seconds: float) -> None:
        """Look, and decide; `seconds` since the begin."""


class _Manager(_Kernel):
    """Applications in groups of their own, which share all there is."""

    tick_seconds = TICK_SECONDS

    def __init__(self, sharing: Sharing, place: LaunchSite, budget: Allocation) -> None:
        self.placements = []
        self._sharing, self._place, self._budget = sharing, place, budget
        self._known: dict[str, Registration] = {}

    def environment(self, instance: Instance) -> Mapping[str, str]:
        """As of an application that `rlctl app run` starts."""
        threads = str(instance.description.modes[-1].threads)
        return {"RLCTL_MODE_FILE": str(self._mode_file(instance.name)), "RLCTL_THREADS": threads}

    def take(self, instance: Instance, pid: int) -> None:
        """Make it an application."""
        self._known[instance.name] = one = register(instance.description, pid, self._place)
        # Its environment was made before its pid was known, by which the registry names the file.
        self._mode_file(instance.name).symlink_to(self._place.registry.mode_file(one.key))

    def _mode_file(self, name: str) -> Path:
        return self._place.registry.directory.parent / f"{name}.mode"

    def ended(self, name: str) -> None:
        """Remove its group, so that the next tick gives its CPU time to the others."""
        forget(self._known[name], self._place)

    def tick(self, seconds: float) -> None:
        """Share anew, if anything has changed."""
        placed = self._sharing.share(self._budget)
        of_instance = {
            name: (placed[one.key].mode, placed[one.key].cluster, placed[one.key].cpus)
            for name, one in self._known.items()
            if one.key in placed
        }
        if not self.placements or self.placements[-1][1] != of_instance:
            self.placements.append((seconds, of_instance))


def _run_to_the_end(processes: Collection[Process], manager: _Kernel) -> dict[str, float]:
    """Let all begin and wait for each; seconds to its end by name; TestbedError: one failed."""
    ended: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        waiting, poll = {}, select.poll()
        for process in processes:
            handle = os.pidfd_open(process.pid)
            stack.callback(os.close, handle)
            waiting[handle] = process
            poll.register(handle, select.POLLIN)
        begun = time.monotonic()
        for process in processes:
            process.release()
        while waiting:
            over = poll.poll(None if manager.tick_seconds is None else 1e3 * manager.tick_seconds)
            seconds = time.monotonic() - begun
            for handle, _ in over:
                poll.unregister(handle)
                process = waiting.pop(handle)
                if process.exit_code != 0:
                    raise TestbedError(f"{process.name} ended with code {process.exit_code}: {process.tail()}")
                ended[process.name] = seconds
                manager.ended(process.name)
            if waiting:
                manager.tick(seconds)
    return ended


def _result(process: Process) -> TunableResult | None:
    """What a benchmark has done; None of a command of the user's."""
    with process.output.open(errors="replace") as output:
        text = output.read(MOST_CHARACTERS)
    return parse_result(text) if text.startswith(RESULT_BEGINS) else None
