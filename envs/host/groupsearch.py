"""Searching all hierarchies for the control groups of a workload.

A workload may have other paths in other v1 hierarchies, or none in some of them; `Found.paths` tells each by itself.
The root group is never an answer: it holds the whole host.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.cgroup.layout import Controller, Layout
from rlctl.envs.host.process import memberships

# Key of the cgroup2 hierarchy, be it the only one or beside v1.
UNIFIED = "unified"

NEAREST_NAMES = 3
_LINKS_OF_A_LEAF = 2


@dataclass(frozen=True, slots=True)
class Found:
    """Where a workload is.

    Attributes:
        paths: Paths of its groups below the hierarchy's root, beginning with a slash, by v1 controller or `UNIFIED`.
            Hierarchies where it has no group of its own are absent.
    """

    paths: Mapping[str, tuple[str, ...]]


def find_groups(matches: Callable[[str], bool], what: str, name: str, layout: Layout, hint: str = "") -> Found:
    """Every group, in each hierarchy, whose path matches; a group below one that matches belongs to it."""
    paths: dict[str, tuple[str, ...]] = {}
    for hierarchy, root in _hierarchies(layout):
        if outer := sorted((path for path, _ in outermost(root, matches)), key=lambda path: path.split("/")):
            paths[hierarchy] = tuple(outer)
    if not paths:
        raise HostError(f"no {what} {name} on this host now{_nearest(name, layout)}{hint}")
    return Found(paths)


def outermost(root: Path, matches: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
    """Groups of one hierarchy whose paths match, none within another, as a tick can afford to look for them.

    Neither the groups below one that matches are looked at, nor the files of one without children: its directory has
    two links then, as each child's `..` is one. File systems that do not count report one link.

    Yields:
        Path below the root, beginning with a slash, and inode.
    """
    folders = [""]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError), os.scandir(f"{root}{folder}") as entries:  # it may vanish meanwhile
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    continue
                if matches(path):
                    yield path, entry.inode()
                elif entry.stat(follow_symlinks=False).st_nlink != _LINKS_OF_A_LEAF:
                    folders.append(path)


def groups_of_process(pid: int, layout: Layout, proc: Path) -> Found:
    """The groups that a process is in.

    Raises:
        HostError: There is no such process.
        ConfigError: It is in root groups only.
    """
    inside = {controller or UNIFIED: path for controller, path in memberships(pid, proc).items()}
    paths = {name: (inside[name],) for name, _ in _hierarchies(layout) if inside.get(name, "/") != "/"}
    if not paths:
        raise ConfigError(f"process {pid} is in no control group of its own; run it as a service or in a container")
    return Found(paths)


def _hierarchies(layout: Layout) -> Iterator[tuple[str, Path]]:
    """v1 hierarchies by each of their controllers, v2 once as `UNIFIED`.

    Not v1's blkio: systemd leaves services in their slice's group there, which is not theirs alone.
    """
    seen: set[str] = set()
    for controller, mount in layout.mounts.items():
        if controller is Controller.IO and mount.version == 1:
            continue
        name = UNIFIED if mount.version == 2 else str(controller)
        if name not in seen:
            seen.add(name)
            yield name, mount.path


def _walk(root: Path) -> Iterator[str]:
    """Paths of all groups below the root, parents before children; one that vanishes meanwhile is left out."""
    for folder, names, _ in os.walk(root):
        names.sort()
        if folder != str(root):
            yield "/" + os.path.relpath(folder, root)


def _nearest(name: str, layout: Layout) -> str:
    """Groups whose names resemble the last part of a name, for the message."""
    known = {path.rpartition("/")[2]: path for _, root in _hierarchies(layout) for path in _walk(root)}
    wanted = name.rstrip("/").rpartition("/")[2]
    # A name within another (nginx in nginx.service) is nearer than its length tells.
    holding = sorted(known_name for known_name in known if wanted in known_name)
    close = dict.fromkeys([*holding, *difflib.get_close_matches(wanted, known, NEAREST_NAMES)])
    return f"; the nearest are {', '.join(known[one] for one in list(close)[:NEAREST_NAMES])}" if close else ""
