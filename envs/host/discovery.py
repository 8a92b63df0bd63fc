"""From a workload as people name it to its control groups and processes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.containers import ByContainer, ContainerPaths, find_container
from rlctl.envs.host.groupsearch import find_groups
from rlctl.envs.host.kubernetes import POD_LOGS, ByKubernetes, kubernetes_matcher
from rlctl.envs.yaml_edge import Strict

_UNIT_KINDS = (".service", ".slice", ".scope", ".socket", ".mount", ".swap")


def _below_root(path: str) -> str:
    if ".." in path.split("/") or not path.strip("/"):
        raise ValueError(f"{path!r} is not a group below the root; write it as in /proc/PID/cgroup")
    return path


GroupPath = Annotated[str, Field(min_length=1), AfterValidator(_below_root)]


class ByCgroup(Strict):
    """A control group, or several by a pattern.

    Attributes:
        path: Below the root of the hierarchy, as /proc/PID/cgroup has it. `*`, `?` and `[...]` match within one
            component, `**` any number of components. A name that is exactly so counts.
    """

    path: GroupPath


class ByUnit(Strict):
    """A systemd unit that runs.

    Attributes:
        unit: Its name as `systemctl` lists it, such as `nginx.service`; one without a suffix is a service.
    """

    unit: Annotated[str, Field(pattern=r"^[^/\s]+$")]


class ByPid(Strict):
    """The control groups that a process is in now; other processes may be in them too.

    Attributes:
        pid: Number of the process.
    """

    pid: int = Field(gt=1)


ByPath = ByCgroup | ByUnit | ByKubernetes
"""How a workload is named whose groups are known by their paths."""


def discover(
    spec: ByPath | ByContainer, layout: Layout, proc: Path = Path("/proc"), search_path: str | None = None
) -> tuple[str, ...]:
    """Paths of the groups of a workload that runs already, below the roots of their hierarchies, each once.

    A process by its id is in the groups of `Group.of_process`.

    Raises:
        HostError: There is nothing of that name now; says which names come near.
    """
    if isinstance(spec, ByContainer):
        return find_container(spec, layout, proc, search_path)
    matches, what, name, hint = _by_path(spec)
    return find_groups(matches, what, name, layout, hint)


def selects(
    spec: ByPath | ByPid | ByContainer, names: Sequence[str], layout: Layout, look_seconds: float = 1.0
) -> Callable[[str], bool] | None:
    """Tells, by its path alone, whether a group is one of a workload's; for groups that come and go.

    Args:
        names: Its groups now. A container is followed by these, and found again by its name when they have gone.
        look_seconds: Between two looks at the groups that there are.

    Returns:
        None for a process, which has no other group than the one it is in.
    """
    match spec:
        case ByPid():
            return None
        case ByContainer():
            return ContainerPaths(names, lambda: find_container(spec, layout), look_seconds)
    return _by_path(spec)[0]


def _by_path(spec: ByPath) -> tuple[Callable[[str], bool], str, str, str]:
    """What matches its paths; in words what it is, its name, and what to do where there is none such."""
    match spec:
        case ByCgroup(path=path):
            return _path_matcher(path), "control group", path, ""
        case ByUnit(unit=unit):
            # On v1 systemd gives a unit a CPU group of its own only when it is told to account for it.
            named = f"; is the name right (`systemctl status {unit}`)?"
            hint = f"{named} if it runs, set CPUAccounting=yes, or name its process (`--lc name:PROCESS`, `kind: pid`)"
            return _unit_matcher(unit), "control group of systemd unit", unit, hint
        case ByKubernetes(qos=str(qos)):
            return kubernetes_matcher(spec), "Kubernetes group or pod of class", qos, ""
        case ByKubernetes(pod=str(pod)):
            return kubernetes_matcher(spec), "Kubernetes pod", pod, f"; kubelet's list of them is {POD_LOGS}"
        case ByKubernetes(pod_uid=uid):
            return kubernetes_matcher(spec), "Kubernetes pod", str(uid), ""


def _path_matcher(pattern: str) -> Callable[[str], bool]:
    parts = _parts(pattern)
    return lambda path: _parts(path) == parts or _matches(_parts(path), parts)


def _matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    ends = {0}  # how many parts of the path the pattern so far may have taken; linear in a path that others made long
    for piece in pattern:
        if piece == "**":
            ends = set(range(min(ends, default=len(path) + 1), len(path) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(path) and fnmatchcase(path[end], piece)}
    return len(path) in ends


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _unit_matcher(unit: str) -> Callable[[str], bool]:
    name = unit if unit.endswith(_UNIT_KINDS) else f"{unit}.service"
    # Only slices above it: a systemd within a container may run a unit of the same name. So may each user's: below
    # `user@UID.service` groups have the names that the user likes, and only that user's own rlctl goes by them.
    own = "" if os.geteuid() == 0 else rf"|user@{os.geteuid()}\.service"
    expression = re.compile(rf"(?:/(?:[^/]+\.slice{own}))*/{re.escape(name)}")
    return lambda path: expression.fullmatch(path) is not None
