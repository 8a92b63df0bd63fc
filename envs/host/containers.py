"""Containers by name or id: Docker, Podman, containerd, runc and crun; by id: CRI-O; under both cgroup drivers.

An id is found among the control groups, where it is part of the name: `docker/ID` (cgroupfs driver),
`system.slice/docker-ID.scope` (systemd driver), `machine.slice/libpod-ID.scope`, `libpod_parent/libpod-ID`. containerd
has a folder for each task, whatever its id. Else only the runtime knows a name, so its command line tool has to answer.
It gives the id, or the first process where the group may have any name (runc with its own `cgroupsPath`).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rlctl.envs.errors import HostError, RlctlError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.groupsearch import find_groups
from rlctl.envs.yaml_edge import Strict

CONTAINERD_TASKS = Path("/run/containerd/io.containerd.runtime.v2.task")
"""Of containerd's shims: NAMESPACE/ID/init.pid holds the first process of a container."""

ANSWER_SECONDS = 5.0  # a daemon that hangs must not hang the controller's start

_ID = re.compile(r"[0-9a-f]{12,64}")  # 12 digits is what `docker ps` shows
# Not `libpod-conmon-` and `crio-conmon-`: those hold the container's monitor, not the container. Podman's
# `--cgroups=split`, which Quadlet has, makes `libpod-payload-`.
_PREFIX = r"(?:(?:docker|libpod(?:-payload)?|crio|cri-containerd|nerdctl)-)?"


# Arguments of each tool, ahead of the name. The first two answer with the id, the others with JSON with a pid.
_QUESTIONS = {
    "docker": ("inspect", "--type=container", "--format={{.Id}}"),
    "podman": ("inspect", "--type=container", "--format={{.Id}}"),
    "runc": ("state",),
    "crun": ("state",),
}


class ByContainer(Strict):
    """A running container of Docker, Podman, containerd, CRI-O, runc or crun.

    Attributes:
        name: Its name, which containerd takes for its id; or its id, or at least 12 digits of that.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]


UNSEEN_LOOKS, AGAIN_SECONDS, MOST_AGAIN_SECONDS = 4, 10.0, 40.0
"""A container whose groups were not seen for so many looks is looked for under its name, and again after so long, twice
as long the next two times. A look, of which there is one a second or one a tick, lists one hierarchy."""


class ContainerPaths:
    """Tells whether a path is a container's group, of one that was made anew under the same name, too.

    That has another id, which its runtime takes too long to tell in a tick: a thread asks.

    Args:
        names: Its groups now.
        find: Its groups at a later time; RlctlError: there is none.
        look_seconds: Between two looks.
    """

    def __init__(
        self,
        names: Sequence[str],
        find: Callable[[], Sequence[str]],
        look_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find, self._clock = find, clock
        self._search: threading.Thread | None = None
        self._unseen_seconds, self._again_seconds = UNSEEN_LOOKS * max(look_seconds, 1.0), AGAIN_SECONDS
        self._due_seconds = clock() + self._unseen_seconds
        self._take(names)

    def __call__(self, path: str) -> bool:
        """Whether the path is one of its groups; asked of every path of a hierarchy again and again."""
        now = self._clock()
        if path in self._known:
            self._due_seconds, self._again_seconds = now + self._unseen_seconds, AGAIN_SECONDS
            return True
        if now >= self._due_seconds and not (self._search and self._search.is_alive()):
            self._due_seconds = now + max(self._again_seconds, self._unseen_seconds)
            self._again_seconds = min(2.0 * self._again_seconds, MOST_AGAIN_SECONDS)
            self._search = threading.Thread(target=self._look, name="container", daemon=True)
            self._search.start()
        return False

    def _look(self) -> None:
        with contextlib.suppress(RlctlError):
            self._take(self._find())

    def _take(self, names: Sequence[str]) -> None:
        self._known = frozenset(f"/{name.strip('/')}" for name in names)


def find_container(
    spec: ByContainer,
    layout: Layout,
    proc: Path = Path("/proc"),
    search_path: str | None = None,
    tasks: Path = CONTAINERD_TASKS,
) -> tuple[str, ...]:
    """Paths of a running container's groups, each once.

    Args:
        search_path: Folders of the runtimes' tools, as in PATH; by default PATH itself.
        tasks: Where containerd has a folder for each task.

    Raises:
        HostError: It does not run, or no runtime knows it; says what each tool answered.
    """
    if _ID.fullmatch(spec.name):
        with contextlib.suppress(HostError):  # no id then, but a name of such digits
            return _by_id(spec.name, spec.name, layout)
    if found := _of_containerd(spec.name, layout, proc, tasks):
        return found
    answers = {}
    for program, question in _QUESTIONS.items():
        tool = shutil.which(program, path=search_path)
        answer, known = ("not installed", False) if tool is None else _ask([tool, *question, spec.name])
        if known:
            return _locate(spec.name, answer, layout, proc)
        answers[program] = answer
    reasons = "; ".join(f"{program}: {answer}" for program, answer in answers.items())
    raise HostError(f"no runtime knows a container {spec.name}, give its full id or its control group ({reasons})")


def _locate(name: str, answer: str, layout: Layout, proc: Path) -> tuple[str, ...]:
    if _ID.fullmatch(answer):
        return _by_id(answer, name, layout)
    try:
        pid = int(json.loads(answer)["pid"])
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(f"container {name}: cannot make sense of the runtime's answer {answer[:80]!r}") from error
    if pid <= 0:
        raise HostError(f"container {name} does not run now; start it first")
    return _of_process(pid, layout, proc)


def _of_process(pid: int, layout: Layout, proc: Path) -> tuple[str, ...]:
    paths = Group.of_process(layout, pid, Knobs(None), proc).paths.items()
    return tuple(dict.fromkeys(f"/{path.relative_to(layout.mounts[controller].path)}" for controller, path in paths))


def _of_containerd(container_id: str, layout: Layout, proc: Path, tasks: Path) -> tuple[str, ...]:
    """Groups of a task of containerd's, in whichever namespace; none where it has no such task that runs."""
    found = []
    for file in sorted(tasks.glob(f"*/{container_id}/init.pid")):
        with contextlib.suppress(OSError, ValueError, RlctlError):
            paths = _of_process(int(file.read_text()), layout, proc)
            # A task that ended leaves its number, which may be another program's by now.
            if all(container_id in path for path in paths):
                found.append((file.parent.parent.name, paths))
    if len(found) > 1:
        spaces = ", ".join(space for space, _ in found)
        raise HostError(f"containerd has a container {container_id} in each of {spaces}; name its control group")
    return found[0][1] if found else ()


def _by_id(container_id: str, name: str, layout: Layout) -> tuple[str, ...]:
    expression = re.compile(rf"(?:/[^/]+)*/{_PREFIX}{container_id}[0-9a-f]*(?:\.scope)?")
    hint = "; is it running?"
    return find_groups(lambda path: expression.fullmatch(path) is not None, "container", name, layout, hint)


def _ask(command: list[str]) -> tuple[str, bool]:
    """The tool's answer, and whether it knew the container."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {ANSWER_SECONDS:g} s", False
    except OSError as error:
        return error.strerror or str(error), False
    if done.returncode == 0:
        return done.stdout.strip(), True
    words = done.stderr.strip().splitlines()
    return (words[-1] if words else f"exit code {done.returncode}"), False
