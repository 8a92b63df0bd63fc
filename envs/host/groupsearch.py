"""Searching all hierarchies for the control groups of a workload.

A workload may have other paths in other v1 hierarchies, or none in some of them: all of them are found. The root group
is never an answer: it holds the whole host.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.layout import Layout

NEAREST_NAMES = 3
_LINKS_OF_A_LEAF = 2


def find_groups(
    matches: Callable[[str], bool], what: str, name: str, layout: Layout, hint: str = ""
) -> tuple[str, ...]:
    """Paths of the groups, in any hierarchy, that match, each once; a group below one that matches belongs to it."""
    found: dict[str, None] = {}
    for root in _roots(layout):
        here = (path for path, _ in outermost(root, matches))
        found |= dict.fromkeys(sorted(here, key=lambda path: path.split("/")))
    if not found:
        raise HostError(f"no {what} {name} on this host now{_nearest(name, layout)}{hint}")
    return tuple(found)


def outermost(root: Path, matches: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
    """Groups of one hierarchy whose paths match, none within another: path below the root, from a slash, and inode."""
    return filter(None, walk(root, matches))


def walk(root: Path, matches: Callable[[str], bool]) -> Iterator[tuple[str, int] | None]:
    """The same group by group, None for each that does not match, so that who has no time for all can stop in between.

    Neither the groups below one that matches are looked at, nor the files of one without children: its directory has
    two links then, as each child's `..` is one. File systems that do not count report one link.
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
                    continue
                yield None
                with contextlib.suppress(OSError):  # one that vanishes takes none of its siblings along
                    if entry.stat(follow_symlinks=False).st_nlink != _LINKS_OF_A_LEAF:
                        folders.append(path)


def _roots(layout: Layout) -> Iterator[Path]:
    """Of every hierarchy, once."""
    return iter(dict.fromkeys(mount.path for _, mount in layout.of_services()))


def _nearest(name: str, layout: Layout) -> str:
    """Groups whose names resemble the last part of a name, for the message."""
    known: dict[str, str] = {}

    def is_wanted(path: str) -> bool:
        known[path.rpartition("/")[2]] = path
        return False

    for root in _roots(layout):
        list(outermost(root, is_wanted))
    wanted = name.rstrip("/").rpartition("/")[2]
    # A name within another (nginx in nginx.service) is nearer than its length tells.
    holding = sorted(known_name for known_name in known if wanted in known_name)
    close = dict.fromkeys([*holding, *difflib.get_close_matches(wanted, known, NEAREST_NAMES)])
    return f"; the nearest are {', '.join(known[one] for one in list(close)[:NEAREST_NAMES])}" if close else ""
