"""From a workload as people name it to its control groups and processes.

A workload may have other paths in other v1 hierarchies, or none in some of them; `Found.paths` tells each by itself.
The root group is never an answer: it holds the whole host.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.cgroup.layout import Layout

__all__ = [
    "UNIFIED",
    "ByCgroup",
    "ByKubernetesPod",
    "ByKubernetesQos",
    "ByPid",
    "ByUnit",
    "Found",
    "discover",
    "find_groups",
    "groups_of_process",
]

UNIFIED = "unified"
"""Key of the cgroup2 hierarchy, be it the only one or beside v1."""

PROC = Path("/proc")
NEAREST_NAMES = 3


@dataclass(frozen=True, slots=True)
class ByCgroup:
    """A control group by its path as in /proc/PID/cgroup; `*`, `?`, `[...]` and `**` match several groups."""

    path: str


@dataclass(frozen=True, slots=True)
class ByUnit:
    """A systemd unit that is running; without a suffix it is a service."""

    unit: str


@dataclass(frozen=True, slots=True)
class ByPid:
    """The groups that a process is in now; other processes may be in them too."""

    pid: int


@dataclass(frozen=True, slots=True)
class ByKubernetesQos:
    """All pods of a Kubernetes QoS class.

    Attributes:
        qos: The class.
        each_pod: The pods' groups rather than the one of the class; guaranteed pods have no group in common.
    """

    qos: Literal["besteffort", "burstable", "guaranteed"] = "besteffort"
    each_pod: bool = False


@dataclass(frozen=True, slots=True)
class ByKubernetesPod:
    """A pod by its uid, or one container of it."""

    uid: str
    container_id: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Where a workload is.

    Attributes:
        paths: Paths of its groups below the hierarchy's root, beginning with a slash, by v1 controller or `UNIFIED`.
            Hierarchies where it has no group of its own are absent.
        pids: Its processes now, those in groups below included.
    """

    paths: Mapping[str, tuple[str, ...]]
    pids: tuple[int, ...] = ()

    def overlaps(self, other: Found) -> tuple[str, ...]:
        """Hierarchies in which a group of one holds a group of the other: what limits one limits both."""
        return tuple(
            name
            for name, paths in self.paths.items()
            if any(_holds(a, b) or _holds(b, a) for a in paths for b in other.paths.get(name, ()))
        )


Spec = ByCgroup | ByUnit | ByPid | ByKubernetesQos | ByKubernetesPod


def discover(spec: Spec, layout: Layout, proc: Path = PROC) -> Found:
    """Find a workload that runs already. For a container see `rlctl.envs.host.containers`.

    Args:
        spec: How it is named.
        layout: Where the hierarchies are.
        proc: Where procfs is mounted.

    Raises:
        ConfigError: The name is impossible.
        HostError: There is nothing of that name now; says which names come near.
    """
    match spec:
        case ByCgroup(path):
            return find_groups(_path_matcher(path), f"control group {path}", layout)
        case ByUnit(unit):
            return find_groups(_unit_matcher(unit), f"systemd unit {unit} with a control group", layout)
        case ByPid(pid):
            return groups_of_process(pid, layout, proc)
        case ByKubernetesQos(qos, each_pod):
            what = f"Kubernetes {'pod' if each_pod else 'group'} of class {qos}"
            return find_groups(_qos_matcher(qos, each_pod), what, layout)
        case ByKubernetesPod(uid, container_id):
            return find_groups(_pod_matcher(uid, container_id), f"Kubernetes pod {uid}", layout)


def find_groups(matches: Callable[[str], bool], what: str, layout: Layout, hint: str = "") -> Found:
    """Every group, in each hierarchy, whose path matches; a group below one that matches belongs to it.

    Args:
        matches: Tells whether a path is wanted.
        what: What is looked for, for the message; its last word that is a name leads to near names.
        layout: Where the hierarchies are.
        hint: A way out, for the message.

    Raises:
        HostError: No group matches.
    """
    paths: dict[str, tuple[str, ...]] = {}
    folders: list[Path] = []
    for name, root in _hierarchies(layout):
        if found := tuple(_outermost(path for path in _walk(root) if matches(path))):
            paths[name] = found
            folders += [root / path.lstrip("/") for path in found]
    if not paths:
        raise HostError(f"no {what} on this host{_nearest(what, layout)}{hint}")
    return Found(paths, _pids_in(folders))


def groups_of_process(pid: int, layout: Layout, proc: Path = PROC) -> Found:
    """The groups that a process is in, and the process.

    Raises:
        HostError: There is no such process.
        ConfigError: It is in root groups only.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError as error:
        raise HostError(f"process {pid}: {error.strerror}: has it ended?") from error
    inside = dict(_memberships(lines))
    known = dict(_hierarchies(layout))
    paths = {name: (inside[name],) for name in known if inside.get(name, "/") != "/"}
    if not paths:
        raise ConfigError(f"process {pid} is in no control group of its own; start it as a service or in a container")
    return Found(paths, (pid,))


def _memberships(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Hierarchy and path: `4:cpu,cpuacct:/x` for v1, `0::/x` for v2. A removed group's path ends in `(deleted)`."""
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            yield controller or UNIFIED, path


def _hierarchies(layout: Layout) -> Iterator[tuple[str, Path]]:
    """Every hierarchy once: v1 by each of its controllers, v2 as `UNIFIED`."""
    seen: set[str] = set()
    for controller, mount in layout.mounts.items():
        name = UNIFIED if mount.version == 2 else str(controller)
        if name not in seen:
            seen.add(name)
            yield name, mount.path


def _walk(root: Path) -> Iterator[str]:
    """Paths of all groups below the root; one that is removed meanwhile is left out."""
    for folder, names, _ in root.walk() if hasattr(root, "walk") else _os_walk(root):
        names.sort()
        if folder != root:
            yield f"/{folder.relative_to(root)}"


def _os_walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    import os

    for folder, names, files in os.walk(root):
        yield Path(folder), names, files


def _outermost(paths: Iterable[str]) -> Iterator[str]:
    kept: list[str] = []
    for path in paths:  # a parent is walked before its children
        if not any(_holds(outer, path) for outer in kept):
            kept.append(path)
            yield path


def _holds(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}/")


def _pids_in(folders: Collection[Path]) -> tuple[int, ...]:
    pids: set[int] = set()
    for folder in folders:
        for listing in folder.rglob("cgroup.procs"):
            try:
                pids.update(int(word) for word in listing.read_text().split())
            except OSError:  # removed meanwhile, or a threaded group
                continue
    return tuple(sorted(pids - {0}))  # 0 stands for a process of another pid namespace


def _path_matcher(pattern: str) -> Callable[[str], bool]:
    parts = [part for part in pattern.split("/") if part]
    if not parts or ".." in parts:
        raise ConfigError(f"{pattern!r} names no control group below the root; write it as in /proc/PID/cgroup")
    literal = "/" + "/".join(parts)
    expression = re.compile("".join(_part_expression(part) for part in parts))
    return lambda path: path == literal or expression.fullmatch(path) is not None


def _part_expression(part: str) -> str:
    """One component as a regular expression; `**` is any number of components. A set must close in its component."""
    if part == "**":
        return "(?:/[^/]+)*"
    pieces = re.split(r"(\*|\?|\[!?[^\]]+\])", part)
    return "/" + "".join(_piece_expression(piece) for piece in pieces)


def _piece_expression(piece: str) -> str:
    if piece == "*":
        return "[^/]*"
    if piece == "?":
        return "[^/]"
    if piece.startswith("[") and piece.endswith("]") and len(piece) > 2:
        negated, members = ("^", piece[2:-1]) if piece[1] == "!" else ("", piece[1:-1])
        return f"[{negated}{members.translate({92: r'\\', 94: r'\^', 91: r'\['})}]"
    return re.escape(piece)


def _unit_matcher(unit: str) -> Callable[[str], bool]:
    if not re.fullmatch(r"[^/\s]+", unit):
        raise ConfigError(f"{unit!r} is no systemd unit; write it as `systemctl` lists it, such as nginx.service")
    named = unit if re.search(r"\.(service|slice|scope|socket|mount|swap)$", unit) else f"{unit}.service"
    return lambda path: path.endswith(f"/{named}")


_ABOVE = r"(?:/[^/]+)*"
# A nested kubelet (kind) puts "kubelet" or its own slice's name ahead of each part.
_CGROUPFS_PODS = {
    "besteffort": "/kubepods/besteffort",
    "burstable": "/kubepods/burstable",
    "guaranteed": "/kubepods",
}
_SYSTEMD_PODS = {
    "besteffort": r"/(?:[^/]+-)?kubepods-besteffort\.slice",
    "burstable": r"/(?:[^/]+-)?kubepods-burstable\.slice",
    "guaranteed": r"/(?:[^/]+-)?kubepods\.slice",
}


def _qos_matcher(qos: str, each_pod: bool) -> Callable[[str], bool]:
    below = qos == "guaranteed" or each_pod
    pod = (r"/pod[^/]+", r"/(?:[^/]+-)?kubepods-(?:[a-z]+-)?pod[^/]+\.slice") if below else ("", "")
    cgroupfs, systemd = _CGROUPFS_PODS[qos] + pod[0], _SYSTEMD_PODS[qos] + pod[1]
    expression = re.compile(f"{_ABOVE}(?:{cgroupfs}|{systemd})")
    return lambda path: expression.fullmatch(path) is not None


def _pod_matcher(uid: str, container_id: str | None) -> Callable[[str], bool]:
    if not re.fullmatch(r"[0-9a-f-]{8,36}", uid):
        raise ConfigError(f"{uid!r} is no pod uid; see `kubectl get pod NAME -o jsonpath={{.metadata.uid}}`")
    # The systemd driver writes the uid's dashes as underscores: a dash means nesting there.
    pod = rf"/(?:pod{uid}|[^/]*kubepods-(?:[a-z]+-)?pod{uid.replace('-', '_')}\.slice)"
    container = "" if container_id is None else rf"/(?:[a-z-]+-)?{re.escape(container_id)}[0-9a-f]*(?:\.scope)?"
    expression = re.compile(_ABOVE + pod + container)
    return lambda path: expression.fullmatch(path) is not None


def _nearest(what: str, layout: Layout) -> str:
    """Existing names that resemble a word of what was looked for."""
    known = {path.rpartition("/")[2]: path for _, root in _hierarchies(layout) for path in _walk(root)}
    words = [word.rpartition("/")[2] for word in what.split()]
    close = [name for word in words for name in difflib.get_close_matches(word, known, n=NEAREST_NAMES)]
    return f"; the nearest are {', '.join(known[name] for name in close[:NEAREST_NAMES])}" if close else ""
