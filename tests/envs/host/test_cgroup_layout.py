"""Which controller is where: wrong here means writing to a hierarchy that nobody looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.layout import CgroupController, Layout

Bench = Any


def tree(folder: Path, mounts: str, **proc_files: str) -> Layout:
    """A captured tree; the mounts' directories are made."""
    root, proc = folder / "sys/fs/cgroup", folder / "proc"
    files = {"self/mountinfo": mounts, **proc_files}
    for name, content in files.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(content)
    root.mkdir(parents=True, exist_ok=True)
    for line in mounts.splitlines():
        point = line.split()[4] if len(line.split()) > 4 else ""
        if point.startswith("/sys/fs/cgroup"):
            (folder / point.lstrip("/").replace(r"\040", " ")).mkdir(parents=True, exist_ok=True)
    return Layout.detect(root, proc)


SYSTEMD_HYBRID = """\
31 23 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
33 31 0:28 / /sys/fs/cgroup/systemd rw,nosuid shared:11 - cgroup cgroup rw,xattr,name=systemd
36 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:15 - cgroup cgroup rw,cpu,cpuacct
37 31 0:32 / /sys/fs/cgroup/cpuset rw,nosuid shared:16 - cgroup cgroup rw,cpuset
38 31 0:33 / /sys/fs/cgroup/my\\040freezer rw,nosuid shared:17 - cgroup cgroup rw,freezer
"""


def test_systemd_mounts_cpu_and_cpuacct_together(tmp_path: Path) -> None:
    layout = tree(tmp_path, SYSTEMD_HYBRID, **{"pressure/cpu": ""})
    assert layout.kind == "hybrid"
    assert layout.mount(CgroupController.CPU) == layout.mount(CgroupController.CPUACCT)
    assert layout.mount(CgroupController.CPU).path.name == "cpu,cpuacct"
    assert layout.mount(CgroupController.FREEZER).path.name == "my freezer"
    assert layout.mount(CgroupController.PRESSURE).version == 2


V2 = "31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def v2(folder: Path, controllers: str, **proc_files: str) -> Layout:
    (folder / "sys/fs/cgroup").mkdir(parents=True)
    (folder / "sys/fs/cgroup/cgroup.controllers").write_text(controllers)
    return tree(folder, V2, **proc_files)


def test_a_v2_host_has_what_its_root_lists(tmp_path: Path) -> None:
    layout = v2(tmp_path, "cpuset cpu io memory\n", **{"pressure/cpu": ""})
    assert layout.kind == "v2"
    assert not layout.missing


def test_controllers_may_be_split_between_versions(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/unified").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/unified/cgroup.controllers").write_text("cpu memory\n")
    mounts = SYSTEMD_HYBRID.replace("rw,cpu,cpuacct", "rw,pids")
    layout = tree(tmp_path, mounts)
    assert layout.mount(CgroupController.CPU).version == 2
    assert layout.mount(CgroupController.CPUSET).version == 1
    assert layout.kind == "hybrid"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("cpuset 0 1 0\n", "switched off at boot"),
        ("cpuset 4 1 1\n", "bound to v1 hierarchy 4"),
        ("cpuset 0 1 1\n", "mounted nowhere"),
        ("cpu 0 1 1\n", "no such controller"),
    ],
)
def test_what_is_missing_is_said_with_the_reason(tmp_path: Path, table: str, reason: str) -> None:
    layout = v2(tmp_path, "cpu memory\n", cgroups="#subsys_name\thierarchy\tnum_cgroups\tenabled\n" + table)
    assert reason in layout.missing[CgroupController.CPUSET]
    with pytest.raises(HostError, match=r"BE's cpuset"):
        layout.mount(CgroupController.CPUSET)
    told = {item.name: item for item in layout.describe()}
    assert not told["cgroup cpuset"].present
    assert told["cgroup cpu"].present
    assert "psi=1" in told["cgroup pressure"].reason


def test_a_read_only_mount_is_no_capability(tmp_path: Path) -> None:
    layout = tree(tmp_path, SYSTEMD_HYBRID.replace("cpuset rw", "cpuset ro"))
    told = {item.name: item for item in layout.describe()}
    assert not told["cgroup cpuset"].present
    assert "not writable" in told["cgroup cpuset"].reason


def test_a_host_without_control_groups(tmp_path: Path) -> None:
    layout = tree(tmp_path, "")
    assert layout.kind == "none"
    assert not any(item.present for item in layout.describe())


def test_a_host_without_procfs(tmp_path: Path) -> None:
    assert Layout.detect(tmp_path, tmp_path / "nowhere").kind == "none"


@given(st.text(alphabet=st.sampled_from("0 1:/-cgroup2rw,\\\n"), max_size=120))
@example("1 1 0:1 / / - 0")
def test_no_mountinfo_breaks_it(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("proc")
    (folder / "self").mkdir()
    (folder / "self/mountinfo").write_text(text)
    Layout.detect(folder / "nowhere", folder)


def test_fake_hosts_have_everything(fake: Bench) -> None:
    assert set(CgroupController) - set(fake.layout.mounts) <= {CgroupController.PRESSURE}
    assert fake.layout.kind in ("v1", "v2", "hybrid")


@pytest.mark.host
def test_this_hosts_mounts_exist() -> None:
    for mount in Layout.detect().mounts.values():
        assert (mount.path / "cgroup.procs").exists()
