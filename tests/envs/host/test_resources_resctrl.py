"""Classes of cache and memory bandwidth, on trees as /sys/fs/resctrl shows them: this needs a server's processor.

The trees have the layout and the wording of Documentation/filesystems/resctrl.rst; `Resctrl` keeps the rules that
rlctl relies on: a class is a directory that the kernel fills, `schemata` wants a newline and answers in columns, and a
class that is removed gives its tasks back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.errors import CgroupError, PermissionMissing
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.kernel import KernelFiles
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.cgroup.schemata import Schemata, high_ways
from rlctl.envs.host.resources.resctrl import (
    BE_CLASS,
    LC_CLASS,
    LOOK_SECONDS,
    Classes,
    ResctrlMonitor,
    mount_options,
    why_no_resctrl,
)
from rlctl.envs.telemetry import Missing, Value, Why

TREES = {
    # name: mount options, schemata of the default class, info
    "xeon": ("rw,relatime", "    L3:0=fffff;1=fffff\n    MB:0=100;1=100\n", {"L3": ("fffff", 1), "MB": (10, 10)}),
    "cdp": (
        "rw,relatime,cdp",
        "L3CODE:0=7ff;1=7ff\nL3DATA:0=7ff;1=7ff\n    MB:0=100;1=100\n",
        {"L3CODE": ("7ff", 2), "L3DATA": ("7ff", 2), "MB": (10, 10)},
    ),
    "mbps": (
        "rw,relatime,mba_MBps",
        "    MB:0=4294967295;1=4294967295\n    L3:0=7ff;1=7ff\n",
        {"L3": ("7ff", 1), "MB": (10, 10)},
    ),
    "epyc": (
        "rw,relatime",
        "    MB:0=2048;1=2048\n  SMBA:0=2048;1=2048\n    L3:0=ffff;1=ffff\n    L2:0=ff;1=ff\n",
        {"L3": ("ffff", 1), "MB": (0, 1)},
    ),
    "l3 only": ("rw,relatime", "L3:0=ffff\n", {"L3": ("ffff", 2)}),
    "mb only": ("rw,relatime", "MB:0=100\n", {"MB": (10, 10)}),
}


class Resctrl(KernelFiles):
    """A kernel over a folder, as far as resctrl goes."""

    def __init__(self, folder: Path, tree: str, classes: int = 15) -> None:
        super().__init__()
        self.sys, self.proc = folder / "sys", folder / "proc"
        self.root, self._classes = self.sys / "fs/resctrl", classes
        options, self._full, info = TREES[tree]
        put(self.proc / "self/mountinfo", f"25 1 0:22 / /sys/fs/resctrl rw - resctrl resctrl {options}\n")
        put(self.proc / "filesystems", "nodev\tresctrl\n")
        put(self.proc / "sys/kernel/random/boot_id", "1-2-3-4\n")
        put(self.root / "schemata", self._full)
        put(self.root / "tasks", "1\n7\n70\n")
        for name, values in info.items():
            names = ("min_bandwidth", "bandwidth_gran") if name == "MB" else ("cbm_mask", "min_cbm_bits")
            for key, value in zip(names, values, strict=True):
                put(self.root / "info" / name / key, f"{value}\n")
        self.count(self.root, (0, 0), (0, 0))
        (self.root / "mon_groups").mkdir()

    def make_group(self, group: Path) -> None:
        if sum((one / "schemata").exists() for one in self.root.iterdir()) >= self._classes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        group.mkdir()
        put(group / "schemata", self._full)
        put(group / "tasks", "")
        self.count(group, (0, 0), (0, 0))

    def remove_group(self, group: Path) -> None:
        tasks = [*(self.root / "tasks").read_text().split(), *(group / "tasks").read_text().split()]
        shutil.rmtree(group)
        put(self.root / "tasks", "".join(f"{task}\n" for task in tasks))

    def write(self, path: Path, text: str) -> None:
        if path.name == "tasks":
            for other in self.root.rglob("tasks"):
                left = [task for task in other.read_text().split() if task != text]
                put(other, "".join(f"{task}\n" for task in left))
            put(path, "".join(f"{task}\n" for task in [*path.read_text().split(), text]))
            return
        if not text.endswith("\n"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        now, wanted = Schemata.parse(path.read_text()), Schemata.parse(text)
        both = Schemata({**now.caches, **wanted.caches}, wanted.bandwidth or now.bandwidth)
        put(path, "".join(f"    {line}\n" for line in str(both).splitlines()))

    @staticmethod
    def count(group: Path, totals: Sequence[object], occupancy: Sequence[object]) -> None:
        for at, (total, held) in enumerate(zip(totals, occupancy, strict=True)):
            put(group / f"mon_data/mon_L3_{at:02}/mbm_total_bytes", f"{total}\n")
            put(group / f"mon_data/mon_L3_{at:02}/llc_occupancy", f"{held}\n")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def classes_on(kernel: Resctrl, state: Path, *, dry_run: bool = False) -> tuple[Classes, Journal]:
    journal = Journal.open(state, kernel.proc)
    return Classes(Knobs(journal, kernel, dry_run=dry_run), kernel.sys, kernel.proc), journal


def schemata(kernel: Resctrl, name: str) -> dict[str, str]:
    lines = (kernel.root / name / "schemata").read_text().split()
    return {line.split(":")[0]: line.split(":")[1] for line in lines}


@pytest.mark.parametrize(
    ("tree", "shares", "be", "lc"),
    [
        (
            "xeon",
            (0.2, 25.0),
            {"L3": "0=f0000;1=f0000", "MB": "0=30;1=30"},  # in steps of ten, rounded up as the kernel would
            {"L3": "0=ffff;1=ffff", "MB": "0=100;1=100"},
        ),
        (
            "cdp",
            (0.2, 5.0),
            {"L3CODE": "0=600;1=600", "L3DATA": "0=600;1=600", "MB": "0=10;1=10"},
            {"L3CODE": "0=1ff;1=1ff", "L3DATA": "0=1ff;1=1ff", "MB": "0=100;1=100"},
        ),
        (
            "mbps",
            (0.5, None, 5008.0),
            {"L3": "0=7c0;1=7c0", "MB": "0=5000;1=5000"},  # in steps of ten, which older kernels would round up to
            {"L3": "0=3f;1=3f", "MB": "0=4294967295;1=4294967295"},
        ),
        (
            "epyc",
            (0.01, None, 8120.0),
            {"L3": "0=8000;1=8000", "MB": "0=64;1=64"},  # eighths of a GB/s
            {"L3": "0=7fff;1=7fff", "MB": "0=2048;1=2048"},
        ),
    ],
)
def test_be_gets_highest_ways_lc_the_rest(
    tmp_path: Path, tree: str, shares: tuple[float | None, ...], be: dict[str, str], lc: dict[str, str]
) -> None:
    kernel = Resctrl(tmp_path, tree)
    before = {path: path.read_text() for path in kernel.root.rglob("*") if path.is_file()}
    classes, journal = classes_on(kernel, tmp_path / "state")
    classes.make()
    assert classes.gather(lc=[7, 70], be=[1, 99]) == 4
    classes.divide(*shares)
    assert (schemata(kernel, BE_CLASS), schemata(kernel, LC_CLASS)) == (be, lc)
    assert (kernel.root / LC_CLASS / "tasks").read_text() == "7\n70\n"
    assert classes.gather(lc=[7, 70], be=[1, 99]) == 0, "they are in it"
    journal.close()  # as when the controller is killed: somebody else restores
    report = restore(tmp_path / "state", kernel=kernel, proc=kernel.proc, patience_seconds=0.1)
    assert report.ok, report
    assert {path.parent.name for path in report.restored} == {LC_CLASS, BE_CLASS}
    assert sorted((kernel.root / "tasks").read_text().split()) == ["1", "7", "70", "99"]
    after = {path: path.read_text() for path in kernel.root.rglob("*") if path.is_file()}
    del before[kernel.root / "tasks"], after[kernel.root / "tasks"]
    assert after == before


def test_classes_without_shares_count_and_are_removed(tmp_path: Path) -> None:
    kernel = Resctrl(tmp_path, "xeon")
    classes, journal = classes_on(kernel, tmp_path / "state")
    classes.make()
    classes.divide()
    assert schemata(kernel, BE_CLASS) == schemata(kernel, "")
    journal.close()
    assert restore(tmp_path / "state", kernel=kernel, proc=kernel.proc).ok
    assert not (kernel.root / BE_CLASS).exists()


@pytest.mark.parametrize("tree", ["xeon", "mbps"])
def test_a_predecessors_classes_are_taken_over(tmp_path: Path, tree: str) -> None:
    """Without its shares: where `be_cache_ratio` was taken out after a crash the LC kept half of the cache."""
    kernel = Resctrl(tmp_path, tree)
    first, journal = classes_on(kernel, tmp_path / "state")
    first.make()
    before = schemata(kernel, BE_CLASS)
    first.divide(0.5, *((50.0,) if tree == "xeon" else (None, 500.0)))
    journal.close()
    second, journal = classes_on(kernel, tmp_path / "state")
    second.make()
    after = schemata(kernel, BE_CLASS)
    assert after["L3"] == schemata(kernel, LC_CLASS)["L3"] == before["L3"]
    assert after["MB"] == {"xeon": before["MB"], "mbps": "0=4294967290;1=4294967290"}[tree], "no kernel rounds it up"
    second.divide(0.2)
    assert schemata(kernel, BE_CLASS)["L3"] == {"xeon": "0=f0000;1=f0000", "mbps": "0=600;1=600"}[tree]
    assert len(journal.entries) == 2
    journal.close()


def test_classes_that_another_rlctl_has_are_left_alone(tmp_path: Path) -> None:
    """The second once gave them shares of its own, and removed them at its end."""
    kernel = Resctrl(tmp_path, "xeon")
    for name in (LC_CLASS, BE_CLASS):
        kernel.make_group(kernel.root / name)
    classes, journal = classes_on(kernel, tmp_path / "state")
    with (kernel.root / LC_CLASS / "schemata").open() as others:
        fcntl.flock(others, fcntl.LOCK_EX)
        with pytest.raises(CgroupError, match="another running rlctl has it"):
            classes.make()
        assert not journal.entries, "nothing that a restore would remove"
        fcntl.flock(others, fcntl.LOCK_UN)
        classes.make()
        with pytest.raises(BlockingIOError):
            fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(journal.entries) == 2
    journal.close()


@pytest.mark.parametrize(
    ("tree", "shares", "told"),
    [
        ("l3 only", (None, 20.0), "divides no memory bandwidth"),
        ("mb only", (0.2,), "divides no last-level cache"),
        ("xeon", (None, None, 1000.0), "in percent here, not in MB/s"),
        ("mbps", (None, 20.0), "in MB/s here, not in percent"),
        ("epyc", (None, 20.0), "in MB/s here, not in percent"),
    ],
)
def test_what_processor_cannot_do_is_told(
    tmp_path: Path, tree: str, shares: tuple[float | None, ...], told: str
) -> None:
    kernel = Resctrl(tmp_path, tree)
    classes, journal = classes_on(kernel, tmp_path / "state")
    classes.make()
    with pytest.raises(CgroupError, match=told):
        classes.divide(*shares)
    assert schemata(kernel, BE_CLASS) == schemata(kernel, "")
    journal.close()


def test_a_processor_whose_classes_others_hold_is_told(tmp_path: Path) -> None:
    kernel = Resctrl(tmp_path, "xeon", classes=1)
    classes, journal = classes_on(kernel, tmp_path / "state")
    with pytest.raises(CgroupError, match="no class of service is left"):
        classes.make()
    journal.close()


def test_ended_task_is_passed_over(tmp_path: Path) -> None:
    class Refusing(Resctrl):
        error = errno.ESRCH

        def write(self, path: Path, text: str) -> None:
            if path.name == "tasks":
                raise OSError(self.error, os.strerror(self.error))

    kernel = Refusing(tmp_path, "xeon")
    classes, journal = classes_on(kernel, tmp_path / "state")
    classes.make()
    assert classes.gather([5], [6]) == 0
    kernel.error = errno.EPERM
    with pytest.raises(PermissionMissing):
        classes.gather([5], [6])
    journal.close()


def test_a_dry_run_makes_no_class(tmp_path: Path) -> None:
    kernel = Resctrl(tmp_path, "xeon")
    classes, journal = classes_on(kernel, tmp_path / "state", dry_run=True)
    classes.make()
    classes.divide(0.5, 50.0)
    assert classes.gather([5], [6]) == 0
    assert not (kernel.root / BE_CLASS).exists()
    journal.close()


def test_it_is_never_mounted_but_told_how(tmp_path: Path) -> None:
    put(tmp_path / "proc/filesystems", "nodev\tcgroup\n")
    assert why_no_resctrl(tmp_path / "sys", tmp_path / "proc") == "this CPU or kernel has none"
    put(tmp_path / "proc/filesystems", "nodev\tcgroup\nnodev\tresctrl\n")
    assert "mount -t resctrl resctrl" in why_no_resctrl(tmp_path / "sys", tmp_path / "proc")
    assert mount_options(tmp_path / "proc") == frozenset()
    with pytest.raises(CgroupError, match="mount -t resctrl"):
        Classes(Knobs(None), tmp_path / "sys", tmp_path / "proc")


@pytest.mark.parametrize("name", TREES)
def test_the_default_class_is_parsed_and_said_again(name: str) -> None:
    full = Schemata.parse(TREES[name][1])
    assert Schemata.parse(str(full)) == full
    assert full.includes(full)
    assert full.includes(Schemata())


def test_blank_padded_values_are_read() -> None:
    padded = Schemata.parse("    MB:0=   50;1=  100\n    L3:0=fffff;1=fffff\n")
    assert (padded.bandwidth, padded.caches) == ({0: 50, 1: 100}, {"L3": {0: 0xFFFFF, 1: 0xFFFFF}})


@given(st.text(alphabet="L3MB:0123456789=;abcdefxCODE \n", max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        parsed = Schemata.parse(text)
    except ValueError:
        return
    assert Schemata.parse(str(parsed)) == parsed


@given(ways=st.integers(1, 32), ratio=st.floats(0.001, 0.999), least=st.integers(1, 3))
def test_mask_is_a_row_at_high_end(ways: int, ratio: float, least: int) -> None:
    full = (1 << ways) - 1
    mask = high_ways(full, ratio, least)
    assert mask & ~full == 0
    assert bin(mask).count("1") >= min(least, ways)
    assert mask + (mask & -mask) == 1 << ways, "a row that ends with the highest way"
    if ways >= 2 * least:
        assert bin(full & ~mask).count("1") >= least


def test_bandwidth_counts_all_classes_of_busiest_socket(tmp_path: Path) -> None:
    kernel = Resctrl(tmp_path, "xeon")
    for name in (LC_CLASS, BE_CLASS, "somebody-else"):
        kernel.make_group(kernel.root / name)
    monitor = ResctrlMonitor(10e9, kernel.sys)
    assert isinstance(monitor.read(0.0)["dram_bandwidth_ratio"], Missing), "a rate takes two readings"
    totals = {"": (1, 0), LC_CLASS: (2, 1), BE_CLASS: (4, 6), "somebody-else": (1, 0)}
    for name, gigabytes in totals.items():
        kernel.count(kernel.root / name, [one * 10**9 for one in gigabytes], (1 << 20, 2 << 20))
    found = monitor.read(1.0)
    assert {name: reading.value for name, reading in found.items() if isinstance(reading, Value)} == {
        "dram_bandwidth_bytes": 15e9,
        "lc_dram_bandwidth_bytes": 3e9,
        "be_dram_bandwidth_bytes": 10e9,
        "dram_bandwidth_ratio": 0.8,
        "be_dram_bandwidth_ratio": 0.4,
        "lc_llc_bytes": 3 << 20,
        "be_llc_bytes": 3 << 20,
    }
    assert set(found) == set(monitor.provides)
    monitor.close()


def test_what_cannot_be_counted_has_its_reason(tmp_path: Path) -> None:
    kernel = Resctrl(tmp_path, "xeon")
    monitor = ResctrlMonitor(None, kernel.sys)
    monitor.read(0.0)
    found = monitor.read(1.0)
    assert found["dram_bandwidth_ratio"] == Missing(Why.NOT_CONFIGURED, "set resources.dram_peak_bytes_per_second")
    assert isinstance(found["be_dram_bandwidth_bytes"], Missing)
    assert "resources.resctrl" in found["be_dram_bandwidth_bytes"].detail
    for word in ("Unavailable", "Error"):
        kernel.count(kernel.root, (word, 0), (word, 0))
        assert isinstance(monitor.read(2.0)["dram_bandwidth_bytes"], Missing)
    monitor.close()
    nothing = ResctrlMonitor(1e9, tmp_path / "nowhere").read(0.0)
    assert {one.why for one in nothing.values() if isinstance(one, Missing)} == {Why.NOT_SUPPORTED}


def test_classes_that_come_and_go_are_followed(tmp_path: Path) -> None:
    kernel = Resctrl(tmp_path, "xeon")
    monitor = ResctrlMonitor(10e9, kernel.sys)
    monitor.read(0.0)
    kernel.make_group(kernel.root / BE_CLASS)
    for now in (LOOK_SECONDS, LOOK_SECONDS + 1.0):
        found = monitor.read(now)
    assert found["be_dram_bandwidth_bytes"] == Value(0.0)
    kernel.remove_group(kernel.root / BE_CLASS)
    found = monitor.read(3 * LOOK_SECONDS)
    assert isinstance(found["be_dram_bandwidth_bytes"], Missing)
    assert found["dram_bandwidth_bytes"] == Value(0.0)
    monitor.close()


def test_removed_class_of_others_blanks_no_bandwidth(tmp_path: Path) -> None:
    kernel = Resctrl(tmp_path, "xeon")
    kernel.make_group(kernel.root / "somebody-else")
    monitor = ResctrlMonitor(10e9, kernel.sys)
    monitor.read(0.0)
    kernel.remove_group(kernel.root / "somebody-else")
    monitor._folders["somebody-else"].close()  # resctrl refuses a file of it that stays open, unlike this folder
    found = monitor.read(1.0)
    assert (found["dram_bandwidth_bytes"], found["dram_bandwidth_ratio"]) == (Value(0.0), Value(0.0))
    monitor.close()
