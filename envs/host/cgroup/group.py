"""One workload's control group, in however many hierarchies it takes."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from rlctl.envs.errors import CgroupBusy, CgroupError, CgroupGone, CgroupRejected, ConfigError, HostError
from rlctl.envs.host.cgroup.driver import CpuDriver, CpusetDriver, FreezerDriver
from rlctl.envs.host.cgroup.kernel import Identity, Kernel, refusal, refusing
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout, Mount
from rlctl.envs.host.cgroup.v1 import CpusetV1, CpuV1, FreezerV1
from rlctl.envs.host.cgroup.values import number
from rlctl.envs.host.process import PROC, has_pending_kill, memberships

# What a BE group may be restricted by, as `Group` names its drivers.
KNOBS = ("cpu", "cpuset", "freezer")

KILLED_AT_ONCE = 100
"""Processes that are looked at in one tick for a SIGKILL that a freeze holds up."""

REMOVE_SECONDS = 5.0
_POLL_SECONDS = 0.005
USED = (
    CgroupController.CPU,
    CgroupController.CPUACCT,
    CgroupController.CPUSET,
    CgroupController.FREEZER,
    CgroupController.PRESSURE,
)


class Group:
    """A group seen through the drivers of its controllers. Use `create`, `open` or `of_process`.

    Its methods raise the errors of `Knobs`, among them CgroupGone once it was removed from one of its hierarchies.

    Args:
        paths: Its directory in the hierarchy of each controller; they may differ.

    Attributes:
        cpu, cpuset, freezer: Drivers of its controllers; None where no hierarchy has them.
    """

    def __init__(self, name: str, paths: Mapping[CgroupController, Path], layout: Layout, knobs: Knobs) -> None:
        self.name = name
        self.paths = dict(paths)
        self.layout = layout
        self._knobs = knobs
        self.cpu: CpuDriver | None = None
        self.cpuset: CpusetDriver | None = None
        self.freezer: FreezerDriver | None = None
        self._bind()

    @classmethod
    def create(cls, layout: Layout, name: str, knobs: Knobs, also: Collection[CgroupController] = ()) -> Group:
        """Make a group in every hierarchy that rlctl uses, ready to take tasks.

        Args:
            name: Path below each hierarchy's root; groups on the way are made too.
            also: Further controllers, where the host has them.

        Raises:
            CgroupBusy: It exists already, or v2 controllers cannot be enabled above it.
            PermissionMissing: Not root.
            ConfigError: No usable name.
        """
        # `..` would lead out of the hierarchy.
        parts = Path(name.strip("/")).parts
        if not parts or ".." in parts:
            raise ConfigError(f"{name!r} names no control group below the root")
        mounts = {name: layout.mounts[name] for name in (*USED, *also) if name in layout.mounts}
        made: list[Path] = []
        try:
            for root in sorted({mount.path for mount in mounts.values()}):
                wanted = [str(name) for name, mount in mounts.items() if mount.path == root and mount.version == 2]
                _make(knobs, root, parts, wanted, made)
        except BaseException:
            for group in reversed(made):
                with contextlib.suppress(OSError):
                    knobs.kernel.remove_group(group)
            raise
        paths = {controller: mount.path.joinpath(*parts) for controller, mount in mounts.items()}
        return cls("/".join(parts), paths, layout, knobs)

    @classmethod
    def open(cls, layout: Layout, path: str | Path, knobs: Knobs) -> Group:
        """A group that exists, in every hierarchy where it does.

        Raises:
            CgroupGone: There is none in any hierarchy.
            ConfigError: It is a hierarchy's root, which belongs to the whole host.
        """
        name = _relative(layout, Path(path))
        paths = {one: mount.path / name for one, mount in layout.mounts.items() if (mount.path / name).is_dir()}
        if name == Path():
            raise ConfigError(f"{path}: the root group holds the whole host; name a group below it")
        if not paths:
            raise CgroupGone(f"{path}: no such group in any hierarchy")
        return cls(str(name), paths, layout, knobs)

    @classmethod
    def of_process(cls, layout: Layout, pid: int, knobs: Knobs, proc: Path = PROC) -> Group:
        """The group that a process is in now, hierarchy by hierarchy; the root of a hierarchy is left out.

        So is a group in a hierarchy where services have none of their own, unless it is another hierarchy's as well.

        Raises:
            HostError: There is no such process.
            ConfigError: It is in no group of its own.
        """
        # A process is in one group of each hierarchy; all of v2 is one (cgroup-v2.rst, "Organizing Processes").
        inside = memberships(pid, proc)
        where = {
            controller: Path(inside.get("" if mount.version == 2 else controller.v1_name, "").lstrip("/"))
            for controller, mount in layout.mounts.items()
        }
        own = {where[controller] for controller, _ in layout.of_services()} - {Path()}
        paths = {one: layout.mounts[one].path / path for one, path in where.items() if path in own}
        paths = {one: path for one, path in paths.items() if path.is_dir()}
        if not paths:
            raise ConfigError(f"process {pid} is in no control group of its own; run it as a service or in a container")
        return cls(f"process {pid}", paths, layout, knobs)

    def using(self, knobs: Knobs) -> Group:
        """The same group, read and written with other knobs."""
        return Group(self.name, self.paths, self.layout, knobs)

    def rest(self) -> Group | None:
        """The same group in those hierarchies that still have it; None if it is gone, or in none that restricts."""
        left = {controller: path for controller, path in self.paths.items() if path.is_dir()}
        rest = Group(self.name, left, self.layout, self._knobs)
        return rest if len(left) < len(self.paths) and (rest.cpu or rest.cpuset or rest.freezer) else None

    @property
    def directories(self) -> tuple[Path, ...]:
        """Its distinct directories; that of the CPU controller first."""
        return tuple(dict.fromkeys(self.paths[one] for one in CgroupController if one in self.paths))

    def relatives(self) -> Iterator[Path]:
        """Its directories, those above them, and those of the groups within it."""
        for directory in self.directories:
            yield from directory.parents
            yield from tree(self._knobs.kernel, directory)

    def knob_files(self, *knobs: str) -> tuple[Path, ...]:
        """What setting some knobs writes, named as in `Settings`; those that this group lacks are left out."""
        files = {
            "quota": self.cpu.quota_files if self.cpu else (),
            "cpus": self.cpuset.cpus_files if self.cpuset else (),
            "frozen": self.freezer.freezer_files if self.freezer else (),
            "weight": self.cpu.weight_files if self.cpu else (),
        }
        return tuple(file for knob in knobs for file in files[knob])

    def setting_files(self, *, weighed: bool) -> tuple[Path, ...]:
        """What tells a group's settings, and what of them is in force."""
        cpu, cpuset, freezer = self.cpu, self.cpuset, self.freezer
        return (
            *(cpu.quota_files if cpu else ()),
            *(cpu.weight_files if cpu and weighed else ()),
            *((*cpuset.cpus_files, cpuset.effective_path) if cpuset else ()),
            *((*freezer.freezer_files, freezer.state_path) if freezer else ()),
        )

    def identity(self) -> tuple[Identity, ...]:
        """Tells this group from a later one of its name."""
        with refusing(self.directories[0], "find it", group=True):
            return tuple(self._knobs.kernel.identity(directory) for directory in self.directories)

    def part(self, controller: CgroupController) -> tuple[Mount, Path]:
        """The hierarchy of a controller, and this group's directory in it."""
        if (mount := self.layout.mounts.get(controller)) is None:
            raise CgroupError(f"cgroup {controller}: {self.layout.missing[controller]}")
        if (path := self.paths.get(controller)) is None:
            raise CgroupError(f"{self.name} has no group in the {controller} hierarchy at {mount.path}")
        return mount, path

    def shared_part(self, controller: CgroupController, file: str) -> tuple[Mount, Path]:
        """The same where its parent shares the controller: in cgroup v2 the group then has that file."""
        mount, path = self.part(controller)
        if mount.version == 2 and not (path / file).exists():
            way_out = f"write +{controller} to {path.parent / 'cgroup.subtree_control'}"
            raise CgroupError(f"{path}: its parent shares no {controller} controller ({way_out})")
        return mount, path

    @property
    def usage_file(self) -> Path | None:
        """`cpuacct.usage` or `cpu.stat`, for sensors."""
        return self._file(CgroupController.CPUACCT, "cpuacct.usage", "cpu.stat")

    @property
    def pressure_file(self) -> Path | None:
        """The group's `cpu.pressure`, for sensors."""
        return self._file(CgroupController.PRESSURE, "cpu.pressure", "cpu.pressure")

    @property
    def procs_file(self) -> Path:
        """A `cgroup.procs` that lists its processes."""
        return self.directories[0] / "cgroup.procs"

    def overlap(self, other: Group) -> tuple[Path, Path] | None:
        """A directory of this group and one of another, of which one holds the other: what limits one limits both."""
        for ours in self.directories:
            for theirs in other.directories:
                # as texts: with paths two hundred groups take a tenth of a second
                one, two = f"{ours}/", f"{theirs}/"
                if one.startswith(two) or two.startswith(one):
                    return ours, theirs
        return None

    def exists(self) -> bool:
        """True while it is there in every hierarchy."""
        return all(directory.is_dir() for directory in self.directories)

    def attach(self, pid: int) -> None:
        """Move a process into the group, in every hierarchy.

        Raises:
            CgroupBusy: The group has no CPU or memory node (v1), or has children that share controllers (v2).
            CgroupRejected: A real-time process may not join (v1 with RT_GROUP_SCHED).
            CgroupError: The process has ended.
        """
        # The whole process at once, in each hierarchy by itself: in between it is in some groups and not in others.
        for directory in self.directories:
            self._knobs.poke(directory / "cgroup.procs", str(pid))

    def pids(self) -> frozenset[int]:
        """Processes in the group and in those below, in whichever of its hierarchies."""
        return frozenset().union(*map(self._pids_in, self.directories))

    def has_processes(self) -> bool:
        """Whether a process is in it or in a group below; zombies do not count."""
        return any(True for _ in self._pids_in(self.directories[0]))

    def affinity(self) -> frozenset[int]:
        """CPUs that any thread of its processes may run on now, whoever says so; none where it has no process."""
        cpus: set[int] = set()
        for pid in self.pids():
            with contextlib.suppress(OSError):  # it has ended
                for thread in os.listdir(PROC / str(pid) / "task"):  # by its number a process is its first thread alone
                    cpus |= os.sched_getaffinity(int(thread))
        return frozenset(cpus)

    def strays(self) -> frozenset[int]:
        """Processes in some of its hierarchies and not in all: a controller does not hold whoever left its group.

        A threaded group of cgroup2 does not tell its processes (cgroup-v2.rst, "Threads"): it is left out.
        """
        listed = []
        for directory in self.directories:
            with contextlib.suppress(CgroupRejected):
                listed.append(frozenset(self._pids_in(directory)))
        return frozenset[int]().union(*listed) - frozenset.intersection(*listed) if listed else frozenset()

    def release_killed(self, first: int = 0) -> int:
        """Let those die that got SIGKILL while they are frozen: a v1 kernel ends none of them before it is thawed.

        Each leaves the freezer's group alone, for the one above. It runs no more code of its own, and its quota holds.

        Args:
            first: Number of the first process to look at, of those in the order of the kernel.

        Returns:
            The first one for the next call. 0 in v2, where SIGKILL ends frozen tasks (cgroup-v2.rst, "cgroup.freeze").
        """
        if not isinstance(self.freezer, FreezerV1):
            return 0
        directory = self.paths[CgroupController.FREEZER]
        # Attaching thaws a task whose new group is not frozen (kernel/cgroup/legacy_freezer.c, freezer_attach).
        pids = list(self._pids_in(directory))
        for pid in pids[first : first + KILLED_AT_ONCE]:
            if has_pending_kill(pid):
                with contextlib.suppress(CgroupError):  # it is gone meanwhile
                    self._knobs.poke(directory.parent / "cgroup.procs", str(pid))
        return first + KILLED_AT_ONCE if len(pids) > first + KILLED_AT_ONCE else 0

    def remove(self, timeout_seconds: float = REMOVE_SECONDS) -> None:
        """Remove it and its descendants everywhere, waiting for ended processes to be gone. Idempotent.

        Raises:
            CgroupBusy: Processes are still in it; which ones.
        """
        # EBUSY for a moment after the last process has ended.
        # Every hierarchy has a directory of its own for the group (v1).
        deadline = time.monotonic() + timeout_seconds
        for directory in self.directories:
            while (error := _remove_tree(self._knobs.kernel, directory)) is not None:
                if time.monotonic() >= deadline or error.errno != errno.EBUSY:
                    raise self._not_removed(error, directory)
                time.sleep(_POLL_SECONDS)

    def _not_removed(self, error: OSError, directory: Path) -> Exception:
        with contextlib.suppress(HostError):
            if pids := sorted(self.pids()):
                return CgroupBusy(
                    f"{directory}: cannot remove it: processes {pids} are in it; end them (thaw them first)"
                )
        return refusal(error, directory, "remove it", group=True)

    def _bind(self) -> None:
        for controller, path in self.paths.items():
            mount = self.layout.mounts[controller]
            first = mount.version == 1
            if controller is CgroupController.CPU and (path / ("cpu.shares" if first else "cpu.weight")).exists():
                self.cpu = (CpuV1 if first else CpuDriver)(self._knobs, path, mount.path)
            elif controller is CgroupController.CPUSET and (path / "cpuset.cpus").exists():
                self.cpuset = (CpusetV1 if first else CpusetDriver)(self._knobs, path)
            elif (
                controller is CgroupController.FREEZER
                and (path / ("freezer.state" if first else "cgroup.freeze")).exists()
            ):
                self.freezer = (FreezerV1 if first else FreezerDriver)(self._knobs, path)

    def _pids_in(self, directory: Path) -> Iterator[int]:
        for group in tree(self._knobs.kernel, directory):
            file = group / "cgroup.procs"
            try:
                yield from (number(word, file) for word in self._knobs.read(file).split())
            except CgroupError:  # one below may be gone meanwhile, or be threaded
                if group == directory:
                    raise

    def _file(self, controller: CgroupController, in_v1: str, in_v2: str) -> Path | None:
        if controller not in self.paths:
            return None
        return self.paths[controller] / (in_v1 if self.layout.mounts[controller].version == 1 else in_v2)


def _make(knobs: Knobs, root: Path, parts: tuple[str, ...], v2_controllers: list[str], made: list[Path]) -> None:
    """Make the groups that lead to one, and the one; `made` tells which, also when this raises."""
    group = root
    for depth, part in enumerate(parts, start=1):
        _enable(knobs, group, v2_controllers)
        group = group / part
        if knobs.dry_run or (depth < len(parts) and group.is_dir()):
            continue
        knobs.make_group(group)
        made.append(group)
        if (group / "cpuset.effective_mems").exists():  # v1, which gives a new group neither CPUs nor memory
            CpusetV1(knobs, group).inherit()


def _enable(knobs: Knobs, group: Path, controllers: list[str]) -> None:
    # Let children of a v2 group have controllers; cpuacct, freezer and pressure are none there, and need no enabling.
    real = [name for name in controllers if name in ("cpu", "cpuset", "memory", "io")]
    if not real:
        return
    # No group but the root may have both processes and controllers for its children (cgroup-v2.rst, "No Internal
    # Process Constraint").
    if (group / "cgroup.type").exists() and knobs.read(group / "cgroup.procs").split():
        raise CgroupBusy(
            f"{group} has processes of its own, and none could join a group below it: move them to a group of their own"
        )
    enabled = knobs.read(group / "cgroup.subtree_control").split()
    absent = [f"+{name}" for name in real if name not in enabled]
    if absent:
        knobs.write(group / "cgroup.subtree_control", " ".join(absent))


def tree(kernel: Kernel, group: Path) -> Iterator[Path]:
    """A group and all below it, each before the one that it is in; below one that is gone nothing."""
    # Depth first with a stack: each group is visited once, so the walk is linear in their number.
    found, left = list[Path](), [group]
    while left:  # not by recursion: whoever owns a group decides how deep it goes
        found.append(one := left.pop())
        with contextlib.suppress(OSError):
            left += kernel.subgroups(one)
    return reversed(found)


def _remove_tree(kernel: Kernel, group: Path) -> OSError | None:
    """Remove a group, its descendants first; what stands in the way, if anything."""
    # rmdir of a group that has children or tasks is refused (cgroup-v2.rst, "Basic Operations").
    for one in tree(kernel, group):
        try:
            kernel.remove_group(one)
        except FileNotFoundError:
            continue
        except OSError as error:
            return error
    return None


def _relative(layout: Layout, path: Path) -> Path:
    """A path below the hierarchies' roots, from a directory in one of them or from such a path."""
    roots = sorted({mount.path for mount in layout.mounts.values()}, key=lambda root: -len(root.parts))
    for root in roots:
        if path.is_relative_to(root):
            return path.relative_to(root)
    return Path(str(path).strip("/"))
