"""From a workload as people name it to its control groups and processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from rlctl.envs.errors import ConfigError
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.containers import ByContainer, find_container
from rlctl.envs.host.groupsearch import find_groups, groups_of_process
from rlctl.envs.host.kubernetes import ByKubernetesPod, ByKubernetesQos, pod_matcher, qos_matcher

_UNIT_KINDS = (".service", ".slice", ".scope", ".socket", ".mount", ".swap")


@dataclass(frozen=True, slots=True)
class ByCgroup:
    """A control group by its path below the hierarchy's root, as /proc/PID/cgroup has it.

    `*`, `?` and `[...]` match within one component, `**` any number of components; a name that is exactly so counts.
    """

    path: str


@dataclass(frozen=True, slots=True)
class ByUnit:
    """A systemd unit that is running; a name without a suffix is a service."""

    unit: str


@dataclass(frozen=True, slots=True)
class ByPid:
    """The groups that a process is in now; other processes may be in them too."""

    pid: int


ByPath = ByCgroup | ByUnit | ByKubernetesQos | ByKubernetesPod
"""How a workload is named whose groups are known by their paths."""

WorkloadSpec = ByPath | ByPid | ByContainer
"""How a workload that runs already is named. One that rlctl starts itself: `rlctl.envs.testbed.launch.Launcher`."""


def discover(
    spec: WorkloadSpec, layout: Layout, proc: Path = Path("/proc"), search_path: str | None = None
) -> tuple[str, ...]:
    """Paths of the groups of a workload that runs already, below the roots of their hierarchies, each once.

    Raises:
        ConfigError: The name is impossible.
        HostError: There is nothing of that name now; says which names come near.
    """
    match spec:
        case ByPid(pid):
            return groups_of_process(pid, layout, proc)
        case ByContainer():
            return find_container(spec, layout, proc, search_path)
    matches, what, name, hint = _by_path(spec)
    return find_groups(matches, what, name, layout, hint)


def selects(spec: WorkloadSpec, names: Sequence[str]) -> Callable[[str], bool] | None:
    """Tells, by its path alone, whether a group is one of a workload's; for groups that come and go.

    Args:
        names: Its groups now. A container is followed by these: asking its runtime takes too long.

    Returns:
        None for a process, which has no other group than the one it is in.

    Raises:
        ConfigError: The name is impossible.
    """
    match spec:
        case ByPid():
            return None
        case ByContainer():
            known = frozenset(f"/{name.strip('/')}" for name in names)
            return lambda path: path in known
    return _by_path(spec)[0]


def _by_path(spec: ByPath) -> tuple[Callable[[str], bool], str, str, str]:
    """What matches its paths; in words what it is, its name, and what to do where there is none such."""
    match spec:
        case ByCgroup(path):
            return _path_matcher(path), "control group", path, ""
        case ByUnit(unit):
            # On v1 systemd gives a unit a CPU group of its own only when it is told to account for it.
            named = f"; is the name right (`systemctl status {unit}`)?"
            hint = f"{named} if it runs, set CPUAccounting=yes for it, or name it by its pid"
            return _unit_matcher(unit), "control group of systemd unit", unit, hint
        case ByKubernetesQos(qos):
            return qos_matcher(spec), "Kubernetes group or pod of class", qos, ""
        case ByKubernetesPod(uid):
            return pod_matcher(spec), "Kubernetes pod", uid, ""


def _path_matcher(pattern: str) -> Callable[[str], bool]:
    parts = _parts(pattern)
    if not parts or ".." in parts:
        raise ConfigError(f"{pattern!r} names no control group below the root; write it as in /proc/PID/cgroup")
    return lambda path: _parts(path) == parts or _matches(_parts(path), parts)


def _matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(path[skipped:], pattern[1:]) for skipped in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _unit_matcher(unit: str) -> Callable[[str], bool]:
    if not re.fullmatch(r"[^/\s]+", unit):
        raise ConfigError(f"{unit!r} is no systemd unit; write it as `systemctl` lists it, such as nginx.service")
    name = unit if unit.endswith(_UNIT_KINDS) else f"{unit}.service"
    # Only slices above it: a systemd within a container may run a unit of the same name.
    expression = re.compile(rf"(?:/(?:[^/]+\.slice|user@\d+\.service))*/{re.escape(name)}")
    return lambda path: expression.fullmatch(path) is not None
