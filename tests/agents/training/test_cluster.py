"""What stands in the way of a Ray cluster is told in one line, and soon."""

import os
import socket
import subprocess
import sys

import pytest

from rlctl.agents.training.cluster.connection import _why_not, check_reachable, connected, require_ray, sweep
from rlctl.agents.training.cluster.nodes import Node, check_version, told_by
from rlctl.envs.errors import BundleError, ConfigError, HostError


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'rlctl\[distributed\]'"):
        require_ray()


@pytest.mark.ray
@pytest.mark.parametrize("address", ["here", "ray://10.0.0.1:10001", "10.0.0.1", ":6379", "10.0.0.1:six", ""])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match="HOST:PORT"), connected(address):
        pass


@pytest.mark.ray
def test_silent_address_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(HostError, match=f"no Ray cluster answers at 127.0.0.1:{port}"), connected(f"127.0.0.1:{port}"):
        pass


def test_rays_own_options_are_not_recommended():
    theirs = "Could not find any running Ray instance. Please specify the one to connect to by setting `--address` flag"
    assert "--address" not in _why_not(ConnectionError(theirs))
    assert "--ray local" in _why_not(ConnectionError(theirs))


def test_relative_bundle_path_is_for_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["frozen", "./mine", "/opt/theirs"]
    check_reachable(None, names)
    check_reachable("local", names)
    check_reachable("auto", ["frozen", "/opt/theirs"])
    with pytest.raises(ConfigError, match=rf"\./mine: .* every node has it, such as {tmp_path}/mine"):
        check_reachable("10.0.0.1:6379", names)


def test_error_says_its_node_and_stays_itself():
    found = told_by("10.0.0.7", BundleError("cannot be read", "/opt/mine/card.json"))
    assert str(found) == "node 10.0.0.7: /opt/mine/card.json: cannot be read"
    assert (type(found), found.exit_code) == (BundleError, 78)


OURS = ("1.2.0", "0123456789ab")


@pytest.mark.parametrize("theirs", [OURS, ("1.2.0", "1.2.0")])  # the second is installed from a wheel
def test_the_same_rlctl_is_taken(theirs):
    check_version("10.0.0.7", theirs, OURS)
    check_version("10.0.0.7", OURS, theirs)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (("1.1.0", "1.1.0"), "10.0.0.7 runs rlctl 1.1.0"),
        (("1.2.0", "0123456789ab+"), r"0123456789ab\+"),
        (("", "No module named 'rlctl'"), "10.0.0.7 has no rlctl .*install 1.2.0"),
    ],
)
def test_node_with_another_rlctl_is_refused(theirs, said):
    with pytest.raises(ConfigError, match=said):
        check_version("10.0.0.7", theirs, OURS)


def test_node_holds_what_it_offers():
    node = Node("1", "10.0.0.7", {"CPU": 2.0, "testbed": 1.0})
    assert node.holds({"CPU": 2.0, "testbed": 1.0})
    assert node.holds({"CPU": 0.0, "elsewhere": 0.0})
    assert not node.holds({"CPU": 3.0})
    assert not node.holds({"elsewhere": 1.0})


def test_killed_drivers_leavings_are_swept(tmp_path):
    with subprocess.Popen(["true"]) as ended:
        pass
    left, kept, foreign = (
        tmp_path / name for name in (f"rlctl-ray-{ended.pid}-x", f"rlctl-ray-{os.getpid()}-x", "ray")
    )
    for folder in (left, kept, foreign):
        (folder / "session").mkdir(parents=True)
    sweep(tmp_path)
    assert [left.exists(), kept.exists(), foreign.exists()] == [False, True, True]
