"""`rlctl serve` with a `resources` section on this machine: in effect while it runs, back byte for byte afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.resources.blockio import disks
from tests.needs import needs
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.host

NAME = f"rlctl-test-resources-{os.getpid()}"
MIB = 1 << 20
SETTINGS = ("memory.min", "memory.low", "memory.high", "memory.max", "io.max", "io.weight")
SETTINGS_V1 = (
    *("memory.limit_in_bytes", "memory.soft_limit_in_bytes"),
    *("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"),
)


@pytest.fixture
def groups() -> Iterator[Layout]:
    """An LC and a BE group below one parent in all hierarchies, those of memory and disks among them."""
    layout = needs(CgroupController.CPUACCT, CgroupController.MEMORY)
    with contextlib.ExitStack() as stack:
        for child in ("", "/lc", "/be"):
            group = Group.create(layout, NAME + child, Knobs(None))
            stack.callback(group.remove)
            for folder in missing_folders(layout, NAME + child):
                folder.mkdir()
                stack.callback(folder.rmdir)
            if group.cpuset is not None:
                group.cpuset.set_cpus(group.cpuset.effective())
        yield layout


def missing_folders(layout: Layout, name: str) -> Iterator[Path]:
    """Directories in hierarchies that `Group.create` makes none in; in v2 their controllers are switched on."""
    for controller in (CgroupController.MEMORY, CgroupController.IO):
        mount = layout.mounts.get(controller)
        if mount is None:
            continue
        folder = mount.path / name
        if mount.version == 2:
            for above in (folder, *folder.parents):
                if above.is_relative_to(mount.path) and above.name not in ("lc", "be"):
                    (above / "cgroup.subtree_control").write_text(f"+{controller}")
        elif not folder.is_dir():
            yield folder


def settings(layout: Layout) -> dict[str, str]:
    folders = {
        layout.mounts[one].path for one in (CgroupController.MEMORY, CgroupController.IO) if one in layout.mounts
    }
    files = [
        folder / NAME / child / name
        for folder in folders
        for child in ("", "lc", "be")
        for name in (*SETTINGS, *SETTINGS_V1)
    ]
    return {str(file): file.read_text() for file in files if file.exists()}


def written(tmp_path: Path, more: str) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"""
tick_seconds: 0.2
lc:
  workload: {{kind: cgroup, path: /{NAME}/lc}}
  slo: {{target_milliseconds: 10, max_load_rps: 100}}
  latency: {{kind: jsonl, path: {tmp_path}/requests.jsonl}}
be:
  workloads: [{{kind: cgroup, path: /{NAME}/be}}]
policy: {{name: static}}
state_directory: {tmp_path}/state
log: {{directory: {tmp_path}/log}}
watchdog: {{enabled: false}}
resources:
  lc_memory_low_bytes: {16 * MIB}
  be_memory_high_bytes: {64 * MIB}
  be_memory_max_bytes: {128 * MIB}
  be_disk_write_bytes_per_second: {MIB}
  be_io_weight: 10
  resctrl: {{be_cache_ratio: 0.2}}
{more}
"""
    )
    return path


@pytest.mark.parametrize("killed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_memory_and_disks_are_bounded_while_it_runs(groups: Layout, tmp_path: Path, killed: bool) -> None:
    before, ticks = settings(groups), tmp_path / "log/ticks.jsonl"
    command = [sys.executable, "-m", "rlctl", "serve", "--config", str(written(tmp_path, ""))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: ticks.exists() and ticks.read_text().count("\n") > 2, process)
            during = settings(groups)
            (process.kill if killed else process.terminate)()
            _, said = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    be = {name: text for name, text in during.items() if "/be/" in name and text != before[name]}
    bounds = {f"{64 * MIB}\n", f"{128 * MIB}\n"}
    assert bounds <= set(be.values()), said
    if CgroupController.IO in groups.mounts and disks():
        assert any(str(MIB) in text for name, text in be.items() if "bps" in name or "io.max" in name), said
    if groups.mounts[CgroupController.MEMORY].version == 1:
        assert "resources.lc_memory_low_bytes is not in effect" in said
        assert "cgroup v1 protects no memory" in said
    else:
        lc = {name: text for name, text in during.items() if text != before[name] and name.endswith("memory.low")}
        assert set(lc.values()) == {f"{16 * MIB}\n"}
        assert len(lc) == 2, "its parent's too"
    if not Path("/sys/fs/resctrl/schemata").exists():
        assert "resources.resctrl is not in effect: resctrl: " in said
    if killed:
        assert settings(groups) == during
        subprocess.run([sys.executable, "-m", "rlctl", "restore", "--state", f"{tmp_path}/state"], check=True)
    assert settings(groups) == before


@pytest.mark.slow
def test_strict_ends_the_start_and_leaves_nothing(groups: Layout, tmp_path: Path) -> None:
    before = settings(groups)
    command = [sys.executable, "-m", "rlctl", "serve", "--config", str(written(tmp_path, "  strict: true"))]
    if Path("/sys/fs/resctrl/schemata").exists():
        pytest.skip("this host may lack nothing")
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 75, done.stderr
    assert "rlctl: error: resources." in done.stderr
    assert "resources.strict is set" in done.stderr
    assert settings(groups) == before
