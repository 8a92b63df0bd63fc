"""What the kernel's files may hold, in v1, v2 and hybrid trees, and what a journal may hold after an accident.

Part of the files that are read answer with anything, the others are a fake kernel's. The actuator must not take BE for
tighter than a strict reading of the same files allows; what is no plain number there counts as wide open. Sensors
answer with numbers that can be, or with reasons. `restore` leaves every file at what it held or at the original of an
entry that is still as it was written, and touches no others.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import RlctlError
from rlctl.envs.host.cgroup import settings
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import JOURNAL, Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.decode import MOST_CPUS
from rlctl.envs.host.probe import probe_machine
from rlctl.envs.host.process import start_time
from rlctl.envs.host.sensors.cpu import HostCpus, LcAlive
from rlctl.envs.host.sensors.psi import Psi
from rlctl.envs.host.sensors.schedstat import RunDelay
from rlctl.envs.host.topology import cpu_order, read_list
from rlctl.envs.telemetry import Quantile, Value
from rlctl.envs.workload import Weight
from tests.doubles.cgroup_kernel import FakeKernel
from tests.doubles.timed import TimedCpus
from tests.fuzz import inputs, shielded
from tests.fuzz.engine import Case, Target, refusal
from tests.fuzz.watch import guarded

CPUS = 4
LIMITS = Limits(cpus=CPUS)
ORDER = (3, 2, 1, 0)
MOST_ORDERED = 1024
"""CPUs that are put in order; the time for it grows with their square, to 2.5 s for the 8,192 that a list may name."""

KINDS = ("v1", "v2", "hybrid")

KNOBS = (
    "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.shares", "cpu.idle", "cpuset.cpus", "cpuset.mems",
    "cpuset.effective_cpus", "freezer.state", "freezer.self_freezing", "cpu.max", "cpu.max.burst", "cpu.weight",
    "cpuset.cpus.effective", "cgroup.freeze", "cgroup.events", "cpu.stat", "cgroup.procs",
)  # fmt: skip
CONTENTS = tuple(
    b"max 100000|50000 100000|50000|-1|0|1|1000|10000|100000|1024|0-3|0,2|3|2-3|FROZEN|FREEZING|THAWED"
    b"|populated 1\nfrozen 1|frozen 0|nr_periods 3\nnr_throttled 1\nthrottled_usec 9|12\n13|max|max 0|50000 0|-5 100000"
    b"|0 100000|1000 1|100000 -1|1_000 10_000|+5 10|50000 100000 7".split(b"|")
)
SENSED = {
    "usage": (b"123456789", b"usage_usec 123456\nuser_usec 1\n"), "pressure": (b"some avg10=0.00 total=12345\n",),
    "procs": (b"12\n13\n",), "schedstat": (b"12345 678 9\n",), "proc stat": (b"12 (a) b) S 1 1 1\n", b"12 (x) Z 1\n"),
    "cpu times": (b"cpu  100 0 50 9000 10 0 1 2 0 0\nintr 5\n",),
    "meminfo": (b"MemTotal: 1 kB\nMemAvailable: 999 kB\n",),
    "online": (b"0-3\n",), "cache": (b"0-1\n",), "package": (b"0\n",), "cgroup": (b"3:cpu:/a\n0::/b\n",),
    "mountinfo": (
        b"30 1 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", b"3 1 0:3 / /sys/fs/cgroup/cpu rw - cgroup c rw,cpu\n",
    ),
    "cgroups": (b"#subsys_name hierarchy num enabled\ncpu 3 1 1\n",),
}  # fmt: skip
TOKENS = (
    b"max",
    b"FROZEN",
    b"FREEZING",
    b"usage_usec 1",
    b"total=",
    b"some ",
    b"\\000",
    b"\\777",
    b"cpu",
    b"frozen 1",
    b"::",
)

_content = st.one_of(st.sampled_from(CONTENTS), inputs.texts(CONTENTS, TOKENS))
_KNOB_CASES = st.fixed_dictionaries(
    {
        "part": st.just(b"actuator"),
        "kind": st.sampled_from([kind.encode() for kind in KINDS]),
        "quota": st.sampled_from([b"0.01", b"0.5", b"1", b"4", b"inf"]),
        "frozen": st.sampled_from([b"", b"1"]),
        "stuck": st.sampled_from([b"", b"1"]),  # the files go on saying so whatever is written
        "files": st.dictionaries(st.sampled_from(KNOBS), _content, min_size=1, max_size=4),
    }
)
_TEXTS = {name: inputs.texts(texts, TOKENS) for name, texts in SENSED.items()}
_sensed = st.sampled_from(sorted(SENSED)).flatmap(lambda name: st.tuples(st.just(name), _TEXTS[name]))
_SENSOR_CASES = st.fixed_dictionaries(
    {
        "part": st.just(b"sensors"),
        "first": st.lists(_sensed, max_size=3).map(dict),
        "then": st.lists(_sensed, max_size=2).map(dict),
    }
)


_edits = st.tuples(st.integers(0, 1 << 16), st.integers(0, len(inputs.EDITS) - 1), st.sampled_from(inputs.NASTY))
_JOURNAL_CASES = st.fixed_dictionaries(
    {
        "part": st.just(b"journal"),
        "kind": st.sampled_from([kind.encode() for kind in KINDS]),
        "edits": st.lists(_edits, max_size=4).map(lambda all_: b"".join(b"@%d %d %s" % one for one in all_)),
    }
)


def _flat(case: Mapping[str, bytes | Mapping[str, bytes]]) -> Case:
    """Files of a case by `part/name`."""
    flat: dict[str, bytes] = {}
    for name, given in case.items():
        flat |= {name: given} if isinstance(given, bytes) else {f"{name}/{one}": data for one, data in given.items()}
    return flat


def _files(case: Case, part: str) -> dict[str, bytes]:
    return {name.removeprefix(f"{part}/"): data for name, data in case.items() if name.startswith(f"{part}/")}


class _Tampered(FakeKernel):
    """A fake kernel of whose files some answer with what they are told to."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, kind, CPUS)
        self.says: dict[str, str] = {}
        self.stuck = False

    def read(self, path: Path) -> str:
        if path.name in self.says and self._admits(path):
            return self.says[path.name]
        return super().read(path)

    def write(self, path: Path, text: str) -> None:
        super().write(path, text)
        if not self.stuck:
            self.says.pop(path.name, None)

    def _admits(self, path: Path) -> bool:
        self._admit(path)
        return True


@dataclass
class _Host:
    """A tree with one BE group, its actuator, and its journal as it is after a first write."""

    kernel: _Tampered
    layout: Layout
    group: Group
    actuator: Callable[[], BeActuator]
    state: Path
    sound: dict[str, bytes]
    journal: bytes


_EDIT = re.compile(rb"@(\d+) (\d+) (.*?)(?=@\d+ \d+ |\Z)", re.DOTALL)
"""Where, which edit, and with what word."""


def _host(folder: Path, kind: str) -> _Host:
    kernel = _Tampered(folder / kind, kind)
    layout = Layout.detect(kernel.root, kernel.proc)
    group = Group.create(layout, "be", Knobs(None, kernel))
    journal = Journal.open(folder / kind / "state", kernel.proc)
    actuator = BeActuator([group], ORDER, LIMITS, Knobs(journal, kernel), settle_seconds=0.0)
    actuator.set_weight(Weight.MINIMUM)
    actuator.apply(Allocation(0.5, 2, frozen=True))
    journal.close()
    state = folder / kind / "state"
    return _Host(
        kernel, layout, group, lambda: BeActuator([group], ORDER, LIMITS, Knobs(None, kernel), settle_seconds=0.0),
        state, _tree(kernel), (state / JOURNAL).read_bytes(),
    )  # fmt: skip


def _tree(kernel: FakeKernel) -> dict[str, bytes]:
    """What its BE group holds."""
    return {str(path): path.read_bytes() for path in kernel.root.glob("**/be/*") if path.is_file()}


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Callable[[Case], str]]:
    """A host of each kind."""
    logging.getLogger("rlctl").setLevel(logging.CRITICAL)
    settings.HEAD_START_SECONDS = settings.MOST_THROTTLED_SECONDS = 0.0  # nobody is frozen here: no time for it either
    hosts = {kind: _host(folder, kind) for kind in KINDS}
    fill = _sensed_tree(folder / "sensed")

    def check(case: Case) -> str:
        part = case["part"].decode()
        with guarded(folder):
            if part == "actuator":
                return f"{_actuate(hosts[case['kind'].decode()], case)}"
            if part == "journal":
                return _restore(hosts[case["kind"].decode()], case)
            return _sense(folder / "sensed", fill, case)

    yield check
    psutil.PROCFS_PATH = "/proc"


def _actuate(host: _Host, case: Case) -> str:
    kernel = host.kernel
    for path, content in host.sound.items():
        Path(path).write_bytes(content)
    kernel.says = {}
    actuator = host.actuator()
    kernel.says = {name: data.decode(errors="surrogateescape") for name, data in _files(case, "files").items()}
    kernel.stuck = bool(case["stuck"])
    target = Allocation(float(case["quota"]), 2, bool(case["frozen"]))
    outcomes = []
    for act in (actuator.read, lambda: actuator.apply(target), actuator.read):
        before = _strictly_read(host)
        try:
            believed = act()
        except RlctlError as error:
            outcomes.append(refusal(error))
            continue
        freest = _strictly_read(host)
        # A quota of all CPUs is written as none: the cpuset holds BE.
        if host.group.cpuset and believed.quota_cpus >= LIMITS.cpus:
            believed = believed.but(quota_cpus=UNLIMITED)
        # A freeze takes its time: what was so before, and has just ended, may still be believed.
        assert freest.at_most(believed) or before.at_most(believed), f"believes {believed}; the files say {freest}"
        outcomes.append("accepted")
    for name in ("weight", "idle", "ceiling_cpus"):
        with contextlib.suppress(RlctlError):
            assert getattr(host.group.cpu, name)() is not False or name == "idle"
    with contextlib.suppress(RlctlError):
        host.group.pids()
    kernel.says, kernel.stuck = {}, False
    return next((one for one in outcomes if one != "accepted"), "accepted")


def _strictly_read(host: _Host) -> Allocation:
    """The most that BE may use by the files as they are, taking nothing but what a kernel prints for a restriction."""
    cpu, cpuset, freezer = (
        host.group.paths.get(one) for one in (CgroupController.CPU, CgroupController.CPUSET, CgroupController.FREEZER)
    )

    def text(folder: Path | None, name: str) -> str:
        return "" if folder is None or not (folder / name).exists() else host.kernel.read(folder / name).strip()

    quota = UNLIMITED
    if match := re.fullmatch(r"([1-9][0-9]{0,19}) ([1-9][0-9]{0,19})", text(cpu, "cpu.max"), re.ASCII):
        quota = int(match[1]) / int(match[2])
    v1 = f"{text(cpu, 'cpu.cfs_quota_us')} {text(cpu, 'cpu.cfs_period_us')}"
    if match := re.fullmatch(r"([1-9][0-9]{0,19}) ([1-9][0-9]{0,19})", v1, re.ASCII):
        quota = int(match[1]) / int(match[2])
    cpus = _cpus(text(cpuset, "cpuset.cpus.effective") or text(cpuset, "cpuset.effective_cpus"))
    prefix = max((ORDER.index(one) + 1 if one in ORDER else CPUS for one in cpus), default=CPUS)
    frozen = text(freezer, "freezer.state") == "FROZEN" or "frozen 1" in text(freezer, "cgroup.events").split("\n")
    return Allocation(quota, prefix, frozen)


def _cpus(text: str) -> set[int]:
    """A plain list of CPUs; of anything else none, which is all."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part.strip(), re.ASCII)
        if match is None:
            return set() if part.strip() else found
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def _restore(host: _Host, case: Case) -> str:
    kernel, journal = host.kernel, host.state / JOURNAL
    for path, content in host.sound.items():
        Path(path).write_bytes(content)
    given = host.journal
    for at, edit, word in _EDIT.findall(case["edits"]):
        given = inputs.EDITS[int(edit)](given, int(at), lambda word=word: word)
    journal.write_bytes(given)
    entitled = {
        said["path"]: said["original"]
        for line in host.journal.splitlines()
        if line in given and "path" in (said := json.loads(line))
    }
    kernel.writes.clear()
    try:
        report = restore(host.state, kernel=kernel, proc=kernel.proc, force=True, patience_seconds=0.0)
    except RlctlError as error:
        return refusal(error)
    touched = {str(path) for path, _ in kernel.writes}
    assert touched <= set(entitled) | {path.replace("period", "quota") for path in entitled}, f"wrote {touched}"
    failed = {str(one.path) for one in (*report.failed, *report.equivalent)}
    for path in touched & set(entitled):
        held, now = {entitled[path].strip().encode(), host.sound[path].strip()}, Path(path).read_bytes().strip()
        assert path in failed or now in held, f"{path}: {now!r} is none of {held}"
    for one in host.state.iterdir():
        one.unlink()
    return "accepted" if report.ok else f"restore failed: {report.failed[0].why}"


def _sensed_tree(folder: Path) -> Callable[[Mapping[str, bytes]], None]:
    """A procfs, a sysfs and a group; gives what fills them."""
    places = {
        "usage": ("group/usage",), "pressure": tuple(f"group/{name}.pressure" for name in ("cpu", "memory", "io")),
        "procs": ("group/cgroup.procs",), "schedstat": ("proc/12/task/12/schedstat", "proc/self/schedstat"),
        "proc stat": ("proc/12/stat",), "cpu times": ("proc/stat",), "meminfo": ("proc/meminfo",),
        "online": ("sys/devices/system/cpu/online", "sys/devices/system/node/online"),
        "cache": ("sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list",
                  "sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "sys/devices/system/node/node0/cpulist"),
        "package": ("sys/devices/system/cpu/cpu0/topology/physical_package_id",
                    "sys/devices/system/cpu/cpu0/cache/index0/level"),
        "cgroup": ("proc/12/cgroup",), "mountinfo": ("proc/self/mountinfo",), "cgroups": ("proc/cgroups",),
    }  # fmt: skip
    files = {name: [folder / place for place in all_] for name, all_ in places.items()}
    for path in [path for all_ in files.values() for path in all_]:
        path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup/b").mkdir(parents=True)

    def fill(given: Mapping[str, bytes]) -> None:
        for name, data in given.items():
            for path in files[name]:
                path.write_bytes(data)

    return fill


def _sense(folder: Path, fill: Callable[[Mapping[str, bytes]], None], case: Case) -> str:
    proc, sys, group = folder / "proc", folder / "sys", folder / "group"
    sound = {name: texts[0] for name, texts in SENSED.items()}
    fill(sound | _files(case, "first"))
    psutil.PROCFS_PATH = str(proc)
    alive = LcAlive(group / "cgroup.procs")
    sensors = (
        TimedCpus(group / "usage", [group / "usage"], CPUS), HostCpus(host_cpus=CPUS, own_seconds=lambda: 0.5), alive,
        Psi(group, [group]), RunDelay(alive.pids, proc),
    )  # fmt: skip
    told = {}
    for now in (1.0, 2.0, 3.0):
        for sensor in sensors:
            readings = sensor.read(now)
            shielded.sane(readings)
            told |= readings
        fill(_files(case, "then" if now == 1.0 else "first"))
    for name in ("lc_cpus", "be_cpus", "host_cpus"):
        assert not isinstance(told[name], Value) or told[name].value <= CPUS
    start_time(12, proc)  # any bytes may come
    for sensor in sensors:
        sensor.close()
    well = {"tail_latency_seconds": Quantile(0.002, 0.0, 500, 1.0), "load_ratio": Value(0.3)}
    without = shielded.allowed(shielded.telemetry(well, shielded.WARM_SECONDS + 1.0))
    assert shielded.allowed(shielded.telemetry({**told, **well}, shielded.WARM_SECONDS + 1.0)).at_most(without)
    return _looked_at(folder, proc, sys)


def _looked_at(folder: Path, proc: Path, sys: Path) -> str:
    """What is read at the start, and by `rlctl doctor`."""
    probe_machine(proc, sys)
    layout = Layout.detect(folder / "cgroup", proc)
    layout.describe()
    try:
        if len(read_list(sys / "devices/system/cpu/online")) <= MOST_ORDERED:
            order = cpu_order([0], sys=sys)
            assert all(0 <= cpu < MOST_CPUS for cpu in order)
        Group.of_process(layout, 12, Knobs(None), proc)
    except RlctlError as error:
        return refusal(error)
    except OSError as error:  # a name longer than names may be; the command line says so in one line
        return f"OSError: {error.strerror}"
    return "accepted"


TARGET = Target("cgroup", st.one_of(_KNOB_CASES, _SENSOR_CASES, _JOURNAL_CASES).map(_flat), opened)
