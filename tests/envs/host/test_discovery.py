"""Workloads by name: a wrong answer throttles somebody else's processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout, Mount
from rlctl.envs.host.containers import find_container
from rlctl.envs.host.discovery import (
    ByCgroup,
    ByContainer,
    ByKubernetes,
    ByPid,
    ByUnit,
    discover,
)
from rlctl.envs.host.groupsearch import find_groups
from rlctl.envs.host.kubernetes import kubernetes_matcher

ID = "3f4c" * 16
OTHER_ID = "9a0b" * 16
UID = "1b2c3d4e-0000-4a5b-8c6d-112233445566"


def make_groups(root: Path, groups: Mapping[str, Iterable[int]]) -> None:
    for path, pids in groups.items():
        folder = root / path
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


@pytest.fixture
def v2(tmp_path: Path) -> Layout:
    """All controllers in one cgroup2 tree."""
    (tmp_path / "cgroup").mkdir()
    mount = Mount(tmp_path / "cgroup", 2)
    return Layout(dict.fromkeys((CgroupController.CPU, CgroupController.CPUSET, CgroupController.FREEZER), mount), {})


@pytest.fixture
def v1(tmp_path: Path) -> Layout:
    """cpu and cpuacct mounted together, cpuset alone, and a cgroup2 mount beside."""
    for name in ("cpu,cpuacct", "cpuset", "unified"):
        (tmp_path / "cgroup" / name).mkdir(parents=True)
    cpu, cpuset, unified = (Mount(tmp_path / "cgroup" / name, v) for name, v in (
        ("cpu,cpuacct", 1), ("cpuset", 1), ("unified", 2)))  # fmt: skip
    return Layout(
        {
            CgroupController.CPU: cpu,
            CgroupController.CPUACCT: cpu,
            CgroupController.CPUSET: cpuset,
            CgroupController.PRESSURE: unified,
        },
        {},
    )


def root(layout: Layout, controller: CgroupController = CgroupController.CPU) -> Path:
    return layout.mounts[controller].path


def pids(found: tuple[str, ...], layout: Layout) -> set[int]:
    """The processes in the groups that were found, and below them."""
    roots = {mount.path for mount in layout.mounts.values()}
    folders = [root / path.strip("/") for root in roots for path in found]
    listings = [listing.read_text() for folder in folders for listing in folder.rglob("cgroup.procs")]
    return {int(word) for listing in listings for word in listing.split()} - {0}


def test_unit_is_found_with_the_processes_below_it(v2: Layout) -> None:
    make_groups(root(v2), {"system.slice/nginx.service": [0, 11], "system.slice/nginx.service/worker": [12]})
    expected = ("/system.slice/nginx.service",)
    assert discover(ByUnit(unit="nginx"), v2) == discover(ByUnit(unit="nginx.service"), v2) == expected


def test_containers_unit_is_another_one(v2: Layout) -> None:
    nested = f"system.slice/docker-{ID}.scope/system.slice/nginx.service"
    make_groups(root(v2), {nested: [1], "system.slice/system-web.slice/web@1.service": [2]})
    with pytest.raises(HostError, match=r"no control group of systemd unit nginx\.service.*; is the name right \("):
        discover(ByUnit(unit="nginx.service"), v2)
    assert pids(discover(ByUnit(unit="web@1"), v2), v2) == {2}


def test_users_unit_is_not_the_service(v2: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    users = "user.slice/user-7.slice/user@7.service/app.slice/nginx.service"
    make_groups(root(v2), {users: [1], "system.slice/ssh.service": [2]})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(HostError, match="no control group of systemd unit nginx"):
        discover(ByUnit(unit="nginx"), v2)
    assert pids(discover(ByCgroup(path=users), v2), v2) == {1}
    monkeypatch.setattr("os.geteuid", lambda: 7)
    assert pids(discover(ByUnit(unit="nginx"), v2), v2) == {1}


def test_v1_hierarchies_answer_each_for_itself(v1: Layout) -> None:
    make_groups(root(v1), {"jobs/batch": [5]})
    make_groups(root(v1, CgroupController.CPUSET), {"jobs/batch": [5, 6], "other": [7]})
    found = discover(ByCgroup(path="/jobs/batch"), v1)
    assert found == ("/jobs/batch",)
    assert pids(found, v1) == {5, 6}
    assert discover(ByCgroup(path="other"), v1) == ("/other",)


def test_slices_blkio_group_is_not_its_services(v1: Layout, tmp_path: Path) -> None:
    """systemd leaves services in their slice's group there: to bound that one would bound all of them."""
    layout = Layout({**v1.mounts, CgroupController.IO: Mount(tmp_path / "cgroup/blkio", 1)}, {})
    make_groups(root(layout, CgroupController.IO), {"system.slice": [5]})
    make_groups(root(layout), {"system.slice/web.service": [5]})
    (tmp_path / "proc/5").mkdir(parents=True)
    (tmp_path / "proc/5/cgroup").write_text("7:blkio:/system.slice\n2:cpu,cpuacct:/system.slice/web.service\n")
    found = Group.of_process(layout, 5, Knobs(None), tmp_path / "proc")
    assert found.directories == (root(layout) / "system.slice/web.service",)
    (tmp_path / "proc/5/cgroup").write_text("7:blkio:/system.slice\n2:cpu,cpuacct:/system.slice\n")
    found = Group.of_process(layout, 5, Knobs(None), tmp_path / "proc")
    assert found.directories == (root(layout) / "system.slice", root(layout, CgroupController.IO) / "system.slice")


def test_globs_take_the_outermost_of_nested_groups(v2: Layout) -> None:
    make_groups(root(v2), {"be/a": [1], "be/a/sub": [2], "be/b": [3], "be-not/a": [4], r"odd[1]\x2d": [9]})
    assert discover(ByCgroup(path="be/*"), v2) == ("/be/a", "/be/b")
    assert pids(discover(ByCgroup(path="/b?/[!a]"), v2), v2) == {3}
    assert discover(ByCgroup(path="**/a"), v2) == ("/be/a", "/be-not/a")
    assert pids(discover(ByCgroup(path="be/**"), v2), v2) == {1, 2, 3}
    assert pids(discover(ByCgroup(path=r"odd[1]\x2d"), v2), v2) == {9}
    assert pids(discover(ByCgroup(path="**/be/**/sub/**"), v2), v2) == {2}


@pytest.mark.parametrize("path", ["/", "../etc", "a/../../b"])
def test_root_and_paths_that_climb_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="below the root"):
        ByCgroup(path=path)


def test_impossible_names_are_refused() -> None:
    for spec in (
        (ByCgroup, {"path": ""}),
        (ByUnit, {"unit": "a b"}),
        (ByPid, {"pid": 1}),
        (ByContainer, {"name": "--help"}),
    ):
        with pytest.raises(ValueError):
            spec[0](**spec[1])
    with pytest.raises(ValueError, match="pod_uid"):
        ByKubernetes(pod_uid="my-pod_1")


def test_misspelt_names_get_their_neighbours(v2: Layout) -> None:
    make_groups(root(v2), {"system.slice/nginx.service": [], "system.slice/ssh.service": []})
    with pytest.raises(HostError, match=r"nearest are /system.slice/nginx.service") as caught:
        discover(ByUnit(unit="ngnix.service"), v2)
    assert "\n" not in str(caught.value)
    with pytest.raises(HostError, match=r"no control group zzz on this host now$"):
        discover(ByCgroup(path="zzz"), v2)


@pytest.mark.parametrize(
    "path",
    [
        "docker/{}",
        "system.slice/docker-{}.scope",
        "machine.slice/libpod-{}.scope",
        "libpod_parent/libpod-{}",
        "system.slice/web.service/libpod-payload-{}",
        "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-{}.scope",
        "kubepods/besteffort/pod1/{}",
        "{}",
    ],
)
def test_container_id_under_every_driver(v2: Layout, path: str) -> None:
    group = path.format(ID)
    make_groups(root(v2), {
        group: [], f"{group}/container": [21], path.format(OTHER_ID): [22],
        f"machine.slice/libpod-conmon-{ID}.scope": [23],
    })  # fmt: skip
    expected = (f"/{group}",)
    assert discover(ByContainer(name=ID), v2) == discover(ByContainer(name=ID[:12]), v2) == expected


def write_tool(folder: Path, name: str, script: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return str(folder)


def test_container_name_is_asked_of_tools_in_turn(v2: Layout, tmp_path: Path) -> None:
    make_groups(root(v2), {f"docker/{ID}": [31], "web": [32]})
    tools = write_tool(tmp_path / "bin", "docker", "echo 'no such container' >&2; exit 1")
    write_tool(tmp_path / "bin", "podman", f'[ "$4" = web ] && echo {ID}')
    assert pids(discover(ByContainer(name="web"), v2, search_path=tools), v2) == {31}


def test_name_may_have_nothing_but_digits_of_id(v2: Layout, tmp_path: Path) -> None:
    make_groups(root(v2), {f"docker/{ID}": [31]})
    tools = write_tool(tmp_path / "bin", "docker", f'[ "$4" = feedfacecafe ] && echo {ID}')
    assert discover(ByContainer(name="feedfacecafe"), v2, search_path=tools) == (f"/docker/{ID}",)
    with pytest.raises(HostError, match="no runtime knows a container deadbeefcafe"):
        discover(ByContainer(name="deadbeefcafe"), v2, search_path=tools)


def test_a_tool_may_speak_any_encoding(v2: Layout, tmp_path: Path) -> None:
    tools = write_tool(tmp_path / "bin", "docker", r"printf 'introuvable: \351t\351\n' >&2; exit 1")
    with pytest.raises(HostError, match=r"docker: introuvable: .t.; podman"):
        discover(ByContainer(name="web"), v2, search_path=tools)


def test_runc_container_with_a_group_of_any_name(v2: Layout, tmp_path: Path) -> None:
    tools = write_tool(tmp_path / "bin", "runc", """echo '{"id": "job", "pid": 41}'""")
    make_groups(root(v2), {"batch/whatever": [41]})
    proc = tmp_path / "proc"
    (proc / "41").mkdir(parents=True)
    (proc / "41/cgroup").write_text("0::/batch/whatever\n")
    assert discover(ByContainer(name="job"), v2, proc, tools) == ("/batch/whatever",)
    write_tool(tmp_path / "bin", "runc", """echo '{"id": "job", "pid": 0, "status": "stopped"}'""")
    with pytest.raises(HostError, match="job does not run now"):
        discover(ByContainer(name="job"), v2, proc, tools)


def test_containerd_task_is_found_by_its_folder(v2: Layout, tmp_path: Path) -> None:
    make_groups(root(v2), {"default/web": [41], "other/web": [42], "elsewhere": [43]})
    proc, tasks = tmp_path / "proc", tmp_path / "tasks"
    for pid, group in ((41, "default/web"), (42, "other/web"), (43, "elsewhere")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(f"0::/{group}\n")
    # The number of a task that ended is another program's now.
    for space, pid in (("default", 41), ("gone", 43)):
        (tasks / space / "web").mkdir(parents=True)
        (tasks / space / "web/init.pid").write_text(str(pid))
    assert find_container(ByContainer(name="web"), v2, proc, str(tmp_path), tasks) == ("/default/web",)
    (tasks / "gone/web/init.pid").write_text("42")
    with pytest.raises(HostError, match="in each of default, gone"):
        find_container(ByContainer(name="web"), v2, proc, str(tmp_path), tasks)


def test_unknown_container_names_what_each_tool_said(v2: Layout, tmp_path: Path) -> None:
    tools = write_tool(tmp_path / "bin", "docker", "echo Is the daemon running? >&2; exit 1")
    with pytest.raises(HostError, match=r"docker: Is the daemon running\?; podman: not installed"):
        discover(ByContainer(name="web"), v2, search_path=tools)
    write_tool(tmp_path / "bin", "docker", f"echo {ID}")
    with pytest.raises(HostError, match=r"no container web .*is it running"):
        discover(ByContainer(name="web"), v2, search_path=tools)


CGROUPFS = {f"kubepods/{qos}pod{n}/{ID}": [n] for n, qos in enumerate(("besteffort/", "burstable/", ""), start=1)}
SYSTEMD = {
    f"kubepods.slice/{above}kubepods-{qos}pod{n}.slice/cri-containerd-{ID}.scope": [n]
    for n, (above, qos) in enumerate(
        (("kubepods-besteffort.slice/", "besteffort-"), ("kubepods-burstable.slice/", "burstable-"), ("", "")), start=1
    )
}


def kind(groups: Mapping[str, Iterable[int]]) -> dict[str, Iterable[int]]:
    """The same below the container of a kind node."""
    return {
        f"system.slice/docker-{OTHER_ID}.scope/kubelet.slice/{path.replace('kubepods', 'kubelet-kubepods')}": pids
        for path, pids in groups.items()
    }


@pytest.mark.parametrize("groups", [CGROUPFS, SYSTEMD, kind(SYSTEMD)], ids=["cgroupfs", "systemd", "kind"])
def test_kubernetes_classes(v2: Layout, groups: Mapping[str, Iterable[int]]) -> None:
    make_groups(root(v2), groups)
    kinds: tuple[Literal["besteffort", "burstable", "guaranteed"], ...] = ("besteffort", "burstable", "guaranteed")
    for number, qos in enumerate(kinds, start=1):
        for each_pod in (False, True):
            found = discover(ByKubernetes(qos=qos, each_pod=each_pod), v2)
            assert pids(found, v2) == {number}
            (path,) = found
            assert path.rstrip(".slice").endswith(f"pod{number}") == (each_pod or qos == "guaranteed")


@pytest.mark.parametrize(
    "path",
    [
        "kubepods/burstable/pod{}/",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-",
        "kubepods.slice/kubepods-pod{}.slice/crio-",
    ],
)
def test_kubernetes_pod_and_one_container_of_it(v2: Layout, path: str) -> None:
    dashed = path.format(UID.replace("-", "_") if "slice" in path else UID)
    suffix = ".scope" if "slice" in path else ""
    monitor = f"{dashed.rpartition('/')[0]}/crio-conmon-{ID}{suffix}"
    make_groups(root(v2), {f"{dashed}{ID}{suffix}": [51], f"{dashed}{OTHER_ID}{suffix}": [52], monitor: [53]})
    assert pids(discover(ByKubernetes(pod_uid=UID), v2), v2) == {51, 52, 53}
    assert pids(discover(ByKubernetes(pod_uid=UID, container_id=ID[:12]), v2), v2) == {51}


def test_a_named_pod_is_followed_when_made_anew(v2: Layout, tmp_path: Path) -> None:
    make_groups(root(v2), {f"kubepods/burstable/pod{UID}/{ID}": [51]})
    logs = tmp_path / "pods"
    matches = kubernetes_matcher(ByKubernetes(pod="web/front-0"), logs)
    assert not matches(f"/kubepods/burstable/pod{UID}")
    for name in (f"web_front-0_{UID}", f"web_front-01_{UID.replace('1b', '2c')}"):
        (logs / name).mkdir(parents=True)
    assert find_groups(matches, "pod", "web/front-0", v2) == (f"/kubepods/burstable/pod{UID}",)
    anew = UID.replace("1b", "3d")
    (logs / f"web_front-0_{anew}").mkdir()
    os.utime(logs, ns=(1, 1))  # a file system may keep coarse times
    assert matches(f"/kubepods/pod{anew}")


@pytest.fixture
def live_group() -> Iterator[Group]:
    layout = Layout.detect()
    if os.geteuid() != 0 or not layout.mounts:
        pytest.skip("needs root and control groups")
    group = Group.create(layout, f"rlctl-test-discovery-{os.getpid()}/job", Knobs(None))
    yield group
    group.remove()
    for folder in group.directories:
        folder.parent.rmdir()


@pytest.mark.host
def test_running_process_is_found_by_pid_and_path(live_group: Group) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        live_group.attach(process.pid)
        layout = Layout.detect()
        by_path = discover(ByCgroup(path=f"/{live_group.name}"), layout)
        assert pids(by_path, layout) == {process.pid}
        assert set(live_group.directories) <= set(Group.of_process(layout, process.pid, Knobs(None)).directories)
        assert discover(ByCgroup(path=f"{live_group.name[:-3]}*"), layout) == by_path
    finally:
        process.kill()
        process.wait()
