"""A kernel for tests: trees of control groups in a folder, with the rules of v1 and v2 that rlctl relies on.

The conformance suite runs on it and on real kernels alike; what it gets wrong, that suite shows. Plain files under the
folder hold the values, so sensors can read them and another process can go on where a killed one stopped.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rlctl.envs.host.cgroup.kernel import Identity
from rlctl.envs.host.decode import format_cpus, parse_cpus

PAGE_BYTES = 4096
V1_UNLIMITED_BYTES = 0x7FFFFFFFFFFFF000

_V1_FILES: Mapping[str, Mapping[str, str]] = {
    "cpu": {
        "cpu.shares": "1024",
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_burst_us": "0",
        "cpu.idle": "0",
        "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0",
    },
    "cpuacct": {"cpuacct.usage": "0"},
    "cpuset": {
        "cpuset.cpus": "",
        "cpuset.mems": "",
        "cpuset.effective_cpus": "",
        "cpuset.effective_mems": "",
        "cpuset.cpu_exclusive": "0",
    },
    "freezer": {"freezer.state": "THAWED", "freezer.self_freezing": "0", "freezer.parent_freezing": "0"},
    "memory": {
        "memory.limit_in_bytes": str(V1_UNLIMITED_BYTES),
        "memory.soft_limit_in_bytes": str(V1_UNLIMITED_BYTES),
        "memory.usage_in_bytes": "0",
    },
    "blkio": {
        "blkio.bfq.weight": "100",
        "blkio.throttle.read_bps_device": "",
        "blkio.throttle.write_bps_device": "",
        "blkio.throttle.read_iops_device": "",
        "blkio.throttle.write_iops_device": "",
        "blkio.throttle.io_service_bytes": "Total 0",
        "blkio.throttle.io_serviced": "Total 0",
    },
}
_V2_FILES: Mapping[str, Mapping[str, str]] = {
    "": {
        "cgroup.controllers": "",
        "cgroup.subtree_control": "",
        "cgroup.freeze": "0",
        "cgroup.events": "populated 0\nfrozen 0",
        "cpu.stat": "usage_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0",
        "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
    },
    "cpu": {"cpu.max": "max 100000", "cpu.max.burst": "0", "cpu.weight": "100", "cpu.idle": "0"},
    "cpuset": {
        "cpuset.cpus": "",
        "cpuset.mems": "",
        "cpuset.cpus.effective": "",
        "cpuset.mems.effective": "",
        "cpuset.cpus.partition": "member",
    },
    "memory": {
        "memory.min": "0",
        "memory.low": "0",
        "memory.high": "max",
        "memory.max": "max",
        "memory.current": "0",
    },
    "io": {"io.weight": "default 100", "io.bfq.weight": "default 100", "io.max": "", "io.stat": ""},
}
_MOUNTINFO = {
    "v1": [f"/sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}" for name in _V1_FILES],
    "v2": ["/sys/fs/cgroup rw - cgroup2 cgroup2 rw"],
}
_MOUNTINFO["hybrid"] = [*_MOUNTINFO["v1"], "/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"]


def _refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class FakeKernel:
    """A `Kernel` over a folder.

    Args:
        folder: Gets `sys/fs/cgroup` and `proc`, unless an earlier instance made them.
        kind: `v1`, `v2` or `hybrid`.
        cpus: CPUs of the host.
        memory_nodes: Memory nodes of the host.

    Attributes:
        root: Stands for /sys/fs/cgroup.
        proc: Stands for /proc.
        denied: Names of files that may not be opened, whoever asks.
        ignored: Names of files whose writes have no effect, as if another program undid them.
        detached: Disks that there are no more, by their numbers.
        writes: Every (path, text) that was accepted.
    """

    def __init__(self, folder: Path, kind: str = "v1", cpus: int = 2, memory_nodes: int = 1) -> None:
        self.root, self.proc = folder / "sys/fs/cgroup", folder / "proc"
        self.denied: set[str] = set()
        self.ignored: set[str] = set()
        self.detached: set[str] = set()
        self.writes: list[tuple[Path, str]] = []
        self._all, self._nodes = frozenset(range(cpus)), frozenset(range(memory_nodes))
        self._online = self._all
        self._rules: dict[str, Callable[[Path, str], str]] = {
            "cpu.cfs_quota_us": self._cfs_quota,
            "cpu.cfs_period_us": self._cfs_period,
            "cpu.cfs_burst_us": self._burst,
            "cpu.max.burst": self._burst,
            "cpu.max": self._max,
            "cpu.shares": self._weight,
            "cpu.weight": self._weight,
            "cpu.idle": self._idle,
            "cpuset.cpus": self._cpus,
            "cpuset.mems": self._mems,
            "freezer.state": self._freezer_state,
            "cgroup.freeze": self._freeze,
            "cpuset.cpu_exclusive": self._exclusive,
            "cpuset.cpus.partition": self._partition,
            "cgroup.procs": self._procs,
            "tasks": self._procs,
            "cgroup.subtree_control": self._subtree_control,
            "blkio.bfq.weight": self._io_weight,
            "io.weight": self._io_weight,
            "io.bfq.weight": self._io_weight,
            "io.max": self._io_max,
            **dict.fromkeys([name for name in _V1_FILES["blkio"] if name.endswith("ps_device")], self._throttle),
        }
        for part in (_V1_FILES["memory"], _V2_FILES["memory"]):
            self._rules |= dict.fromkeys(part.keys() - {"memory.usage_in_bytes", "memory.current"}, self._pages)
        if not self.root.exists():
            self._boot(kind)

    def read(self, path: Path) -> str:
        """The content now; a freeze takes effect one reading after it was ordered."""
        self._admit(path)
        content = path.read_text()
        if path.name == "freezer.state" and content == "FREEZING\n":
            self._put(path, "FROZEN")
        elif path.name == "cgroup.events":
            frozen = any(_get(above / "cgroup.freeze") == "1" for above in self._line(path.parent))
            populated = int(bool(_get(path.parent / "cgroup.procs")))
            self._put(path, f"populated {populated}\nfrozen {int(frozen)}")
        return content

    def write(self, path: Path, text: str) -> None:
        """Take a value or refuse it, as the kernel would."""
        self._admit(path)
        if path.name not in self._rules:
            raise _refuse(errno.EINVAL)
        content = self._rules[path.name](path.parent, text.strip())
        if path.name not in self.ignored:
            self._put(path, content)
        self.writes.append((path, text))
        self._settle(path)

    def identity(self, group: Path) -> Identity:
        """Never the same for two groups, even of one name."""
        return 1, int((group / ".identity").read_text())

    def make_group(self, group: Path) -> None:
        """Make one group with all its files."""
        group.mkdir()
        self._fill(group)

    def remove_group(self, group: Path) -> None:
        """Remove a group that has neither tasks nor children."""
        if not group.is_dir():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(group))
        if self.subgroups(group) or _get(group / "cgroup.procs"):
            raise _refuse(errno.EBUSY)
        for path in group.iterdir():
            path.unlink()
        group.rmdir()

    def subgroups(self, group: Path) -> tuple[Path, ...]:
        """Child groups in the order of their names."""
        return tuple(sorted(path for path in group.iterdir() if path.is_dir()))

    def close(self) -> None:
        """Nothing to close: no file stays open."""

    def offline(self, cpu: int) -> None:
        """A CPU goes: v1 takes it out of every group for good, and v2 out of what is in force."""
        self._online -= {cpu}
        for name in ("cpuset.cpus", "cpuset.effective_cpus", "cpuset.cpus.effective"):
            for path in self.root.rglob(name):
                if name != "cpuset.cpus" or not self._is_v2(path.parent):
                    self._put(path, format_cpus(parse_cpus(_get(path)) - {cpu}))

    def online(self, cpu: int) -> None:
        """It is back: v1 gives it to the root alone."""
        self._online |= {cpu}
        for name in ("cpuset.cpus", "cpuset.effective_cpus"):
            self._put(self.root / "cpuset" / name, format_cpus(self._online))

    def _boot(self, kind: str) -> None:
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "pressure").mkdir()
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        lines = [f"{number} 1 0:{number} / {mount}" for number, mount in enumerate(_MOUNTINFO[kind], start=30)]
        files = {
            "self/mountinfo": "\n".join(lines),
            "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
            "sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555",
            "cgroups": "\n".join(f"{name} {int(kind != 'v2')} 1 1" for name in _V1_FILES),
        }
        for name, content in files.items():
            self._put(self.proc / name, content)
        for mount in _MOUNTINFO[kind]:
            group = self.root / Path(mount.split()[0]).relative_to("/sys/fs/cgroup")
            group.mkdir(parents=True, exist_ok=True)
            self._fill(group)
        if kind == "v2":
            self._put(self.root / "cgroup.controllers", "cpuset cpu io memory")
            self._put(self.root / "cpuset.cpus.effective", format_cpus(self._all))
            self._put(self.root / "cpuset.mems.effective", format_cpus(self._nodes))

    def _fill(self, group: Path) -> None:
        above = _get(group.parent / "cgroup.subtree_control").split()
        if not self._is_v2(group):
            files = dict(_V1_FILES[group.relative_to(self.root).parts[0]])
        else:
            files = {name: value for part in ("", *above) for name, value in _V2_FILES.get(part, {}).items()}
            files["cgroup.controllers"] = " ".join(above)
        files |= {} if self._is_v2(group) else {"tasks": ""}
        for name, content in {**files, "cgroup.procs": "", ".identity": self._next_identity()}.items():
            self._put(group / name, content)
        if self._is_root(group):
            for name in files.keys() & {"cpuset.cpu_exclusive"}:
                self._put(group / name, "1")
            for name in files.keys() & {"cpuset.cpus", "cpuset.effective_cpus"}:
                self._put(group / name, format_cpus(self._all))
            for name in files.keys() & {"cpuset.mems", "cpuset.effective_mems"}:
                self._put(group / name, format_cpus(self._nodes))
        elif "cpuset.cpus.effective" in files:
            self._settle(group / "cpuset.cpus")

    def _next_identity(self) -> str:
        path = self.root / ".identities"
        number = str(int(_get(path) or "0") + 1)
        self._put(path, number)
        return number

    def _admit(self, path: Path) -> None:
        if path.name in self.denied:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    def _put(self, path: Path, content: str) -> None:
        path.write_text(content + "\n")

    def _is_v2(self, group: Path) -> bool:
        return group.relative_to(self.root).parts[:1] not in [(name,) for name in _V1_FILES]

    def _is_root(self, group: Path) -> bool:
        return group == self.root or (group.parent == self.root and group.name in (*_V1_FILES, "unified"))

    def _line(self, group: Path) -> Iterator[Path]:
        """The group and its ancestors below the hierarchy's root."""
        while not self._is_root(group) and group.is_relative_to(self.root):
            yield group
            group = group.parent

    def _tree(self, group: Path) -> Iterator[Path]:
        yield group
        for child in self.subgroups(group):
            yield from self._tree(child)

    def _settle(self, path: Path) -> None:
        """What a write changes elsewhere."""
        for group in self._tree(path.parent):
            if not (group / path.name).exists():
                continue
            if path.name == "cpuset.cpus" and (group / "cpuset.cpus.effective").exists():
                above = parse_cpus(_get(group.parent / "cpuset.cpus.effective")) or self._online
                self._put(
                    group / "cpuset.cpus.effective", format_cpus(parse_cpus(_get(group / path.name)) & above or above)
                )
            elif path.name == "cpuset.cpus":
                self._put(group / "cpuset.effective_cpus", _get(group / path.name))
            elif path.name == "cpuset.mems" and (group / "cpuset.effective_mems").exists():
                self._put(group / "cpuset.effective_mems", _get(group / path.name))

    def _cfs_quota(self, group: Path, text: str) -> str:
        quota = _whole(text)
        if 0 <= quota < max(1000, _whole(_get(group / "cpu.cfs_burst_us"))):
            raise _refuse(errno.EINVAL)
        self._check_bandwidth(group, quota, _whole(_get(group / "cpu.cfs_period_us")))
        return str(max(quota, -1))

    def _cfs_period(self, group: Path, text: str) -> str:
        period = _whole(text)
        if not 1000 <= period <= 1_000_000:
            raise _refuse(errno.EINVAL)
        self._check_bandwidth(group, _whole(_get(group / "cpu.cfs_quota_us")), period)
        return str(period)

    def _check_bandwidth(self, changed: Path, quota: int, period: int) -> None:
        """Kernel/sched/core.c, tg_cfs_schedulable_down: in v1 no group may have more than the ones above it."""

        def walk(group: Path, most: float) -> None:
            own, length = _whole(_get(group / "cpu.cfs_quota_us")), _whole(_get(group / "cpu.cfs_period_us"))
            own, length = (quota, period) if group == changed else (own, length)
            if own >= 0 and own / length > most:
                raise _refuse(errno.EINVAL)
            for child in self.subgroups(group):
                walk(child, own / length if own >= 0 else most)

        walk(self.root / "cpu", float("inf"))

    def _burst(self, group: Path, text: str) -> str:
        quota = _get(group / "cpu.cfs_quota_us") or _get(group / "cpu.max").split()[0]
        if quota not in ("-1", "max") and _whole(text) > _whole(quota):
            raise _refuse(errno.EINVAL)
        return str(_whole(text))

    def _max(self, group: Path, text: str) -> str:
        quota, *period = text.split()
        length = _whole(period[0] if period else _get(group / "cpu.max").split()[1])
        if not 1000 <= length <= 1_000_000:
            raise _refuse(errno.EINVAL)
        if quota != "max" and _whole(quota) < max(1000, _whole(_get(group / "cpu.max.burst"))):
            raise _refuse(errno.EINVAL)
        return f"{quota} {length}"

    def _weight(self, group: Path, text: str) -> str:
        v1 = (group / "cpu.shares").exists()
        if not v1 and not 1 <= _whole(text) <= 10_000:
            raise _refuse(errno.ERANGE)
        if _get(group / "cpu.idle") == "1":
            raise _refuse(errno.EINVAL)
        return str(min(max(_whole(text), 2), 262_144) if v1 else _whole(text))

    def _idle(self, group: Path, text: str) -> str:
        if text not in ("0", "1"):
            raise _refuse(errno.ERANGE)
        if text != _get(group / "cpu.idle"):
            for name, idle, busy in (("cpu.shares", "3", "1024"), ("cpu.weight", "1", "100")):
                if (group / name).exists():
                    self._put(group / name, idle if text == "1" else busy)
        return text

    def _cpus(self, group: Path, text: str) -> str:
        return self._subset(group, "cpuset.cpus", text, self._all)

    def _mems(self, group: Path, text: str) -> str:
        return self._subset(group, "cpuset.mems", text, self._nodes)

    def _subset(self, group: Path, name: str, text: str, host: frozenset[int]) -> str:
        try:
            wanted = parse_cpus(text)
        except ValueError:
            raise _refuse(errno.EINVAL) from None
        if not wanted <= host:
            raise _refuse(errno.ERANGE)
        if not wanted and _get(group / name) and any(_get(inner / "cgroup.procs") for inner in self._tree(group)):
            raise _refuse(errno.ENOSPC)
        if (group / "cpuset.effective_cpus").exists():
            if name == "cpuset.cpus" and not wanted <= self._online:
                raise _refuse(errno.EINVAL)
            if not all(parse_cpus(_get(child / name)) <= wanted for child in self.subgroups(group)):
                raise _refuse(errno.EBUSY)
            if not wanted <= parse_cpus(_get(group.parent / name)):
                raise _refuse(errno.EACCES)
        return format_cpus(wanted)

    def _freezer_state(self, group: Path, text: str) -> str:
        if text not in ("FROZEN", "THAWED"):
            raise _refuse(errno.EINVAL)
        self._put(group / "freezer.self_freezing", str(int(text == "FROZEN")))
        for inner in self._tree(group):
            held = any(_get(above / "freezer.self_freezing") == "1" for above in self._line(inner))
            frozen = _get(inner / "freezer.state") == "FROZEN"
            self._put(inner / "freezer.state", "FROZEN" if held and frozen else "FREEZING" if held else "THAWED")
        return _get(group / "freezer.state")

    def _freeze(self, _group: Path, text: str) -> str:
        if text not in ("0", "1"):
            raise _refuse(errno.ERANGE)
        return text

    def _procs(self, group: Path, text: str) -> str:
        if (group / "cpuset.effective_cpus").exists() and not _get(group / "cpuset.cpus"):
            raise _refuse(errno.ENOSPC)
        root = next(above for above in itertools.chain([group], group.parents) if self._is_root(above))
        lists = ("cgroup.procs",) if self._is_v2(group) else ("cgroup.procs", "tasks")  # every process has one thread
        for name, other in itertools.product(lists, self._tree(root)):
            left = [pid for pid in _get(other / name).split() if pid != text]
            self._put(other / name, "\n".join([*left, text] if other == group else left))
        return _get(group / "cgroup.procs")

    def _exclusive(self, group: Path, text: str) -> str:
        """V1: only below an exclusive parent, and where no sibling overlaps."""
        if text == "1" and _get(group.parent / "cpuset.cpu_exclusive") != "1":
            raise _refuse(errno.EACCES)
        if text == "1" and self._rivals(group):
            raise _refuse(errno.EINVAL)
        return text

    def _partition(self, group: Path, text: str) -> str:
        """V2: a partition that cannot be says why when it is read."""
        if text == "root" and self._rivals(group):
            return "root invalid (Cpu list in cpuset.cpus not exclusive)"
        if (
            text == "root"
            and not self._is_root(group.parent)
            and _get(group.parent / "cpuset.cpus.partition") != "root"
        ):
            return "root invalid (Parent is not a partition root)"
        return text

    def _rivals(self, group: Path) -> list[Path]:
        own = parse_cpus(_get(group / "cpuset.cpus"))
        siblings = [other for other in self.subgroups(group.parent) if other != group]
        return [other for other in siblings if own & parse_cpus(_get(other / "cpuset.cpus"))]

    def _pages(self, _group: Path, text: str) -> str:
        """Memory is counted in pages; v1 has a largest number of them where v2 has `max`."""
        if text == "max" or _whole(text) < 0:
            return "max" if text == "max" else str(V1_UNLIMITED_BYTES)
        return str(min(_whole(text), V1_UNLIMITED_BYTES) // PAGE_BYTES * PAGE_BYTES)

    def _io_weight(self, group: Path, text: str) -> str:
        """v2 takes `N` and `default N` and shows the latter."""
        number = _whole(text.removeprefix("default "))
        if not 1 <= number <= 10_000:
            raise _refuse(errno.ERANGE)
        return str(number) if (group / "blkio.bfq.weight").exists() else f"default {number}"

    def _io_max(self, group: Path, text: str) -> str:
        device, _, given = text.partition(" ")
        if device in self.detached:
            raise _refuse(errno.ENODEV)
        lines = dict(line.split(" ", 1) for line in _get(group / "io.max").splitlines())
        none = dict.fromkeys(("rbps", "wbps", "riops", "wiops"), "max")
        now = dict(word.split("=") for word in lines.pop(device, "").split())
        limits = none | now | dict(word.split("=") for word in given.split())
        if limits != none:
            lines[device] = " ".join(f"{name}={limit}" for name, limit in limits.items())
        return "\n".join(f"{name} {rest}" for name, rest in lines.items())

    def _throttle(self, _group: Path, text: str) -> str:
        """As if there were one disk."""
        device, _, limit = text.partition(" ")
        if device in self.detached:
            raise _refuse(errno.ENODEV)
        return "" if _whole(limit) == 0 else f"{device} {_whole(limit)}"

    def _subtree_control(self, group: Path, text: str) -> str:
        enabled = _get(group / "cgroup.subtree_control").split()
        for word in text.split():
            if word[0] == "+" and word[1:] not in _get(group / "cgroup.controllers").split():
                raise _refuse(errno.ENOENT)
            below = (_get(child / "cgroup.subtree_control").split() for child in self.subgroups(group))
            if word[0] == "-" and any(word[1:] in names for names in below):
                raise _refuse(errno.EBUSY)
            with contextlib.suppress(ValueError):
                enabled.remove(word[1:])
            enabled += [word[1:]] if word[0] == "+" else []
            for child in self.subgroups(group):
                self._enable(child, word)
        return " ".join(sorted(enabled))

    def _enable(self, child: Path, word: str) -> None:
        for name, content in _V2_FILES.get(word[1:], {}).items():
            if word[0] == "-":
                (child / name).unlink(missing_ok=True)
            elif not (child / name).exists():
                self._put(child / name, content)
        controllers = set(_get(child / "cgroup.controllers").split()) - {word[1:]} | (
            {word[1:]} if word[0] == "+" else set()
        )
        self._put(child / "cgroup.controllers", " ".join(sorted(controllers)))
        if word == "+cpuset":
            self._settle(child / "cpuset.cpus")


def _get(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _refuse(errno.EINVAL) from None
