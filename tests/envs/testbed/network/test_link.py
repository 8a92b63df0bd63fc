"""A provisioned link: what can be none is refused, what is run is what `ip` and `tc` take, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.errors import PermissionMissing, RlctlError, TestbedError
from rlctl.envs.telemetry import Missing, Value
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.jobs import Upload
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.leftovers import sweep
from rlctl.envs.testbed.namespace import Namespace, require_tools
from rlctl.envs.testbed.network.link import NO_CLASSES, TOOLS, Link, LinkConfig, LinkUse, ceiling, classes
from tests.waiting import until

CREDITS = LinkConfig(rates=((0.0, 300.0), (20.0, 150.0), (40.0, 300.0)))


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((), "the first is at 0"),
        (((5.0, 300.0),), "the first is at 0"),
        (((0.0, 300.0), (20.0, 150.0), (20.0, 300.0)), "each comes after the one before"),
        (((0.0, 300.0), (20.0, 0.0)), "a link of 0 Mbit/s"),
        (((0.0, 3e8),), "1 to 100000 are possible"),
        (((0.0, float("nan")),), "finite number"),
    ],
)
def test_impossible_rates_are_refused_in_words(rates: tuple[tuple[float, float], ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LinkConfig(rates=rates)


@pytest.mark.parametrize("one", [{"burst_kilobytes": 32}, {"queue_milliseconds": 0}])
def test_a_bucket_that_takes_no_packet_is_refused(one: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(one))):
        LinkConfig(rates=((0.0, 300.0),), **one)


def test_rate_is_last_one_that_has_begun() -> None:
    times = (0.0, 19.9, 20.0, 39.9, 40.0, 1e6)
    assert [CREDITS.rate_mbit(time) for time in times] == [300.0, 300.0, 150.0, 150.0, 300.0, 300.0]


def test_commands_are_those_that_a_person_would_type() -> None:
    host = [" ".join(command) for command in CREDITS.host_side(77)]
    assert "ip link add uplink type veth peer name client netns 77" in host
    assert "tc qdisc add dev uplink root tbf rate 300mbit burst 128kb latency 50ms" in host
    assert " ".join(CREDITS.shaper("change", 150.0)).startswith("tc qdisc change dev uplink root tbf rate 150mbit ")


def test_classes_stay_below_their_owners_rate() -> None:
    commands = [" ".join(command) for command in classes(400.0)]
    assert sum("ceil 380.000mbit" in command for command in commands) == 3
    assert any("classid 1:10 htb rate 372.400mbit" in command and "prio 0" in command for command in commands)
    assert any("match ip sport 7001 0xffff flowid 1:10" in command for command in commands)
    assert NO_CLASSES[:3] == ("tc", "qdisc", "del")


def test_who_is_told_follows_the_rate(monkeypatch: pytest.MonkeyPatch, launcher: Launcher) -> None:
    link, done = Link(CREDITS, launcher), list[str]()
    monkeypatch.setattr(link.host, "run", lambda commands: done.extend(" ".join(command) for command in commands))
    link.set_rate_at(25.0)
    assert len(done) == 1
    link.told_ratio = 1.0
    link.set_rate_at(0.0)
    assert sum("tc class change" in command and "ceil 285.000mbit" in command for command in done[1:]) == 3
    link.unite()
    link.set_rate_at(25.0)
    assert "tbf rate 150mbit" in done[-1]


def test_under_ceiling_lc_has_neither_limit_nor_precedence() -> None:
    commands = [" ".join(command) for command in ceiling()]
    assert any("parent 1: classid 1:10 htb rate 100000.000mbit ceil 100000.000mbit" in command for command in commands)
    assert any("parent 1: classid 1:20 htb rate 1.000mbit ceil 1.000mbit" in command for command in commands)
    assert not any("prio" in command for command in commands)


def test_what_runs_inside_may_speak_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Namespace, "inside", ())
    assert Namespace("here").run([["printf", r"\351t\351"]]) == "\ufffdt\ufffd"
    with pytest.raises(TestbedError, match=r"in here: .t."):
        Namespace("here").run([["sh", "-c", r"printf '\351t\351' >&2; exit 1"]])


# ---- live ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tools() -> None:
    try:
        require_tools(TOOLS)
    except RlctlError as error:
        pytest.skip(str(error))


def names(*inside: str) -> set[str]:
    """Interfaces of a namespace; without one, of this process's."""
    lines = subprocess.run([*inside, "ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0].partition("@")[0] for line in lines.splitlines()}


def populated(*namespaces: str) -> bool:
    """Whether a process is in one of these namespaces; the kernel keeps none that nobody is in."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return bool(found & set(namespaces))


@pytest.mark.host
def test_link_is_in_namespaces_of_its_own(tools: None, launcher: Launcher) -> None:
    before = names()
    with Link(CREDITS, launcher) as link:
        ids = [os.readlink(f"/proc/{one.pid}/ns/net") for one in (link.host, link.client)]
        assert names(*link.host.inside) >= {"lo", "uplink", "host"}
        assert names(*link.client.inside) >= {"lo", "client"}
        assert names() == before
        link.divide(1.0)
        link.unite()
        with pytest.raises(TestbedError, match=r"`tc qdisc del dev host root` in namespace of LC and BE: .+"):
            link.unite()
    assert not populated(*ids)
    assert names() == before


@pytest.mark.slow
@pytest.mark.host
def test_upload_counts_what_arrives(tools: None, launcher: Launcher) -> None:
    config = LinkConfig(rates=((0.0, 40.0), (1.0, 160.0)))
    with Link(config, launcher) as link:
        inside, client = (Launcher(launcher.folder, inside=one.inside) for one in (link.host, link.client))

        def delivered_mbit(t_seconds: float) -> float:
            link.set_rate_at(t_seconds)
            job = Upload(2, client)
            job.start(inside)
            job.ready()
            assert len(job.pids()) == 1, "it has begun before it was told to"
            job.begin()
            time.sleep(2.0)
            work = job.stop()
            assert work.bogo_ops == work.by_stressor["bytes"]
            return work.rate * 8e-6

        with inside, client:
            assert 0.0 < delivered_mbit(0.0) < 48.0
            assert until(lambda: 48.0 < delivered_mbit(1.0) < 190.0)  # a busy machine compresses less than that


@pytest.mark.host
def test_ceiling_holds_an_upload(tools: None, launcher: Launcher) -> None:
    with Link(LinkConfig(rates=((0.0, 160.0),)), launcher) as link:
        inside, client = (Launcher(launcher.folder, inside=one.inside) for one in (link.host, link.client))
        use = LinkUse(link)
        assert use.read(time.monotonic()) == {}
        with inside, client:
            link.limit_be()
            link.hold_be(0.25)
            assert isinstance(use.read(time.monotonic())["link_ratio"], Missing)
            job = Upload(1, client)
            job.start(inside)
            job.ready()
            job.begin()
            time.sleep(2.0)
            readings = use.read(time.monotonic())
            work = job.stop()
            link.unite()
            assert use.read(time.monotonic()) == {}
    all_ratio, lc_ratio = readings["link_ratio"], readings["lc_link_ratio"]
    assert isinstance(all_ratio, Value)
    assert isinstance(lc_ratio, Value)
    assert 0.1 < all_ratio.value < 0.3
    assert lc_ratio.value == 0.0
    assert 15.0 < work.rate * 8e-6 < 48.0


@pytest.mark.slow
@pytest.mark.host
def test_an_upload_that_died_is_an_error(tools: None, launcher: Launcher) -> None:
    with Link(CREDITS, launcher) as link:
        inside, client = (Launcher(launcher.folder, inside=one.inside) for one in (link.host, link.client))
        with inside, client:
            job = Upload(1, client)
            job.start(inside)
            job.ready()
            os.kill(job.process.pid, signal.SIGKILL)
            job.process.wait(5.0)
            with pytest.raises(TestbedError, match="upload ended with code -9"):
                job.stop()


@pytest.mark.slow
@pytest.mark.host
def test_what_the_kernel_refuses_is_told(tools: None, monkeypatch: pytest.MonkeyPatch, launcher: Launcher) -> None:
    one = Namespace("test")
    one.start(launcher)
    with pytest.raises(TestbedError, match=r"`ip link add x type nothing` in test: .*Unknown device type"):
        one.run([("ip", "link", "add", "x", "type", "nothing")])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PermissionMissing, match="needs root"):
        require_tools(TOOLS)


OWNER = """
import os, sys, time
from pathlib import Path
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.network.link import Link, LinkConfig
from rlctl.envs.testbed.jobs import Upload

with Janitor(Path(sys.argv[1]), keeper=sys.argv[2] == "keeper") as janitor:
    folder = janitor.make_folder()
    with Launcher(folder, None, janitor) as holders, Link(LinkConfig(rates=((0.0, 100.0),)), holders) as link:
        inside, client = (Launcher(folder, None, janitor, one.inside) for one in (link.host, link.client))
        with inside, client:
            link.divide(1.0)
            job = Upload(1, client)
            job.start(inside)
            job.ready()
            job.begin()
            print(*(os.readlink(f"/proc/{one.pid}/ns/net") for one in (link.host, link.client)), flush=True)
            time.sleep(60)
"""


def marked(mark: str) -> list[int]:
    """Processes with this in their environment, which all children of an owner inherit."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    sweep(tmp_path / "state")


@pytest.mark.slow
@pytest.mark.host
@pytest.mark.parametrize("keeper", ["keeper", "none"])
def test_killed_owner_leaves_no_namespace(tools: None, state: Path, keeper: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(state), keeper], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    namespaces = owner.stdout.readline().split()
    assert len(namespaces) == 2
    assert populated(*namespaces)
    owner.kill()
    owner.communicate()
    if keeper == "none":
        with Janitor(state):
            assert not populated(*namespaces)
    until(lambda: not populated(*namespaces) and not list(state.glob("testbed-*")))


@pytest.mark.slow
@pytest.mark.host
@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.2])
def test_killed_owner_leaves_nobody_in_a_namespace(tools: None, state: Path, seconds: float) -> None:
    mark = f"RLCTL_TEST_MARK={os.getpid()}-{seconds}"
    environment = {**os.environ, "RLCTL_TEST_MARK": mark.partition("=")[2]}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(state), "keeper"], env=environment, stdout=subprocess.PIPE
    )
    until(lambda: marked(mark))
    time.sleep(seconds)
    owner.kill()
    owner.communicate()
    until(lambda: not marked(mark))
