"""BE's packets are held on the interface, the LC's never; an interface is left as it was found, or refused as it is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal, load
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.network.interface import journal_path
from rlctl.envs.host.network.packet_rules import PacketRules, table_name
from rlctl.envs.host.network.shaper import BURST_BYTES
from rlctl.envs.host.probe import probe_link
from rlctl.envs.host.reins import link
from rlctl.envs.host.reins.link import LinkRein, find_interface, read_sent_bytes
from tests.envs.host.reins.wire import BE_PORT, LC_PORT, NAME, Wire, wire
from tests.needs import needs
from tests.waiting import until

pytestmark = pytest.mark.host

SCALE = 0.1 if os.environ.get("RLCTL_GUEST") else 1.0
RATE = 5e6 * SCALE
LC_MBIT = 16.0 * SCALE
PLAIN = "noqueue 0: root"
"""What the kernel gives a veth."""

OF_ANOTHER_RLCTL = """
import sys, time
from pathlib import Path
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.reins.link import LinkRein

group = Group.open(Layout.detect(), sys.argv[1], Knobs(None))
rein = LinkRein.open("wire", (), [group], Journal.open(Path(sys.argv[2])), int(sys.argv[3]))
rein.hold(5e6)
print("holds", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def there() -> Iterator[Wire]:
    needs(CgroupController.PRESSURE, programs=("ip", "tc", "unshare", "nsenter"))
    with wire() as made:
        yield made


@pytest.fixture
def side(there: Wire) -> Wire:
    """The wire, with nothing on it at the beginning."""
    with contextlib.suppress(subprocess.CalledProcessError):
        there.run(f"tc qdisc del dev {NAME} root")
    assert PLAIN in there.run(f"tc qdisc show dev {NAME}")
    return there


@pytest.fixture
def be() -> Iterator[Group]:
    group = Group.create(needs(CgroupController.PRESSURE), f"rlctl-test-link-{os.getpid()}", Knobs(None))
    yield group
    group.remove()


@pytest.fixture
def rein(side: Wire, be: Group) -> Iterator[LinkRein]:
    made = LinkRein.open(NAME, (), [be], None, side.here.pid)
    yield made
    made.close()


def rates(rein: LinkRein, seconds: float = 2.0) -> tuple[float, float]:
    """Bytes a second of everybody else and of BE, by the kernel's own account, once they have settled."""
    time.sleep(0.5)
    (before, be_before), began = rein.sent_bytes(), time.monotonic()
    time.sleep(seconds)
    (after, be_after), elapsed = rein.sent_bytes(), time.monotonic() - began
    return (after - before - (be_after - be_before)) / elapsed, (be_after - be_before) / elapsed


@pytest.mark.parametrize("kind", ["tcp", "udp", "sendfile"])
def test_be_gets_what_others_leave(side, be, rein, kind):
    rein.hold(RATE)
    with side.sending("tcp", LC_PORT, LC_MBIT), side.sending(kind, BE_PORT, 0.0, be.directories):
        others, held = rates(rein)
    assert others > 0.85 * LC_MBIT * 125e3  # more where it makes up for a moment without a CPU
    assert others + held == pytest.approx(RATE, rel=0.1, abs=BURST_BYTES)


def test_others_are_never_held(side, be, rein):
    rein.hold(RATE)
    with side.sending("tcp", LC_PORT, 5.0 * LC_MBIT), side.sending("tcp", BE_PORT, 0.0, be.directories):
        others, held = rates(rein)
    assert others == pytest.approx(2.0 * RATE, rel=0.15)
    assert held < 0.02 * RATE


def test_be_does_not_pay_for_past_load(side, be, rein):
    """The kernel would hold BE at nothing for as long again as the LC sent twice the rate."""
    rein.hold(RATE)
    with side.sending("tcp", BE_PORT, 0.0, be.directories):
        with side.sending("tcp", LC_PORT, 10.0 * LC_MBIT):
            rates(rein, 2.0)
        rein.sent_bytes()
        time.sleep(0.5)
        rein.sent_bytes()
        _, held = rates(rein, 1.0)
    assert 0.7 * RATE < held < 1.1 * RATE  # TCP itself is back to all of it only after a while


def test_free_be_is_not_held(side, be, rein):
    rein.hold(RATE)
    rein.hold(None)
    with side.sending("tcp", BE_PORT, 0.0, be.directories):
        _, held = rates(rein, 1.0)
    assert held > 4.0 * RATE


def test_socket_opened_elsewhere_is_not_held(side, be, rein):
    """A socket belongs to the group in which it was made: who wants it held starts BE in its group."""
    rein.hold(RATE)
    with side.sending("tcp", BE_PORT, 12.5 * LC_MBIT) as pid:
        be.attach(pid)
        others, held = rates(rein, 1.0)
    assert held < 0.02 * RATE
    assert others > 2.0 * RATE


def test_group_made_anew_is_held_again(side, be, rein):
    rein.hold(RATE)
    be.remove()
    again = Group.create(needs(CgroupController.PRESSURE), be.name, Knobs(None))
    rein.follow([again])
    with side.sending("tcp", BE_PORT, 0.0, again.directories):
        assert rates(rein, 1.0)[1] == pytest.approx(RATE, rel=0.1)


def test_interface_is_plain_after_close(side, be):
    rein = LinkRein.open(NAME, (), [be], None, side.here.pid)
    assert "htb 71c7: root" in side.run(f"tc qdisc show dev {NAME}")
    rein.close()
    assert PLAIN in side.run(f"tc qdisc show dev {NAME}")


def test_somebodys_queues_are_refused_unchanged(side, be, tmp_path):
    side.run(f"tc qdisc add dev {NAME} root handle 9: tbf rate 10mbit burst 10kb latency 10ms")
    before = side.run(f"tc qdisc show dev {NAME}")
    with Journal.open(tmp_path) as journal, pytest.raises(HostError, match=r"tbf 9:.*tc qdisc del dev wire root"):
        LinkRein.open(NAME, (), [be], journal, side.here.pid)
    assert side.run(f"tc qdisc show dev {NAME}") == before
    assert not journal.entries


def test_refused_rules_leave_interface_plain(side, be, monkeypatch):
    """A kernel before 5.13 knows no `socket cgroupv2`: the LC's traffic passed one class that held nobody."""

    def refuse(rules, senders):
        raise HostError("nftables: Operation not supported")

    monkeypatch.setattr(PacketRules, "replace", refuse)
    with pytest.raises(HostError, match="not supported"):
        LinkRein.open(NAME, (), [be], None, side.here.pid)
    assert PLAIN in side.run(f"tc qdisc show dev {NAME}")


def test_ingress_filter_is_nobodys_queue(side, be):
    side.run(f"tc qdisc add dev {NAME} clsact")
    LinkRein.open(NAME, (), [be], None, side.here.pid).close()
    assert "clsact" in side.run(f"tc qdisc show dev {NAME}")
    side.run(f"tc qdisc del dev {NAME} clsact")


@contextlib.contextmanager
def another_rlctl(side: Wire, be: Group, state: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", OF_ANOTHER_RLCTL, be.name, str(state), str(side.here.pid)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"holds\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_second_rlctl_is_refused(side, be, tmp_path):
    with another_rlctl(side, be, tmp_path), pytest.raises(HostError, match="another running rlctl holds BE"):
        LinkRein.open(NAME, (), [be], None, side.here.pid)


def test_rlctl_that_may_not_leaves_no_entry(side, be, tmp_path):
    """Nobody could put it back: each stop would fail."""
    needs(programs=("setpriv",))
    program = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", sys.executable, "-c", OF_ANOTHER_RLCTL]
    words = [*program, be.name, str(tmp_path), str(side.here.pid)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60.0)
    assert "it takes CAP_NET_ADMIN" in done.stderr
    assert not load(tmp_path).entries


def test_restore_takes_down_what_sigkill_left(side, be, tmp_path):
    with another_rlctl(side, be, tmp_path):
        pass
    assert "htb 71c7: root" in side.run(f"tc qdisc show dev {NAME}")
    report = restore(tmp_path)
    assert report.ok
    assert report.restored == [journal_path(NAME)]
    assert PLAIN in side.run(f"tc qdisc show dev {NAME}")
    assert not restore(tmp_path).restored


def test_successor_goes_on_with_crashed_interface(side, be, tmp_path):
    with another_rlctl(side, be, tmp_path):
        pass
    with Journal.open(tmp_path) as journal:
        LinkRein.open(NAME, (), [be], journal, side.here.pid).close()
        assert len(journal.entries) == 1
    assert restore(tmp_path).unchanged == [journal_path(NAME)]


def test_stranger_refuses_crashed_interface(side, be, tmp_path):
    with another_rlctl(side, be, tmp_path):
        pass
    with pytest.raises(HostError, match="another rlctl has left its queues"):
        LinkRein.open(NAME, (), [be], None, side.here.pid)
    restore(tmp_path)


def test_restore_leaves_running_rlctls_interface(side, be, tmp_path):
    """Somebody deleted the crashed one's queues by hand, and the interface is another's by now."""
    with another_rlctl(side, be, tmp_path / "crashed"):
        pass
    side.run(f"tc qdisc del dev {NAME} root")
    with another_rlctl(side, be, tmp_path / "running"):
        assert not restore(tmp_path / "crashed").ok
        assert "htb 71c7: root" in side.run(f"tc qdisc show dev {NAME}")
    assert restore(tmp_path / "running").ok


def test_deleted_queues_come_back(side, rein, caplog):
    side.run(f"tc qdisc del dev {NAME} root")
    rein.sent_bytes()
    assert "htb 71c7: root" in side.run(f"tc qdisc show dev {NAME}")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    side.run(f"tc qdisc del dev {NAME} root")
    with pytest.raises(HostError, match="keeps removing"):
        rein.sent_bytes()
    with pytest.raises(HostError, match="is not there"):
        rein.hold(RATE)


def test_rein_returns_when_stranger_leaves(side, rein, monkeypatch):
    monkeypatch.setattr(link, "MEND_SECONDS", 0.0)
    side.run(f"tc qdisc replace dev {NAME} root handle 9: tbf rate 10mbit burst 10kb latency 10ms")
    with pytest.raises(HostError, match="somebody chose"):
        rein.sent_bytes()
    side.run(f"tc qdisc del dev {NAME} root")
    rein.sent_bytes()
    rein.hold(RATE)


def test_rate_that_was_refused_is_written_again(rein, monkeypatch):
    written = []
    monkeypatch.setattr(
        rein._interface.shaper, "set_rate", lambda rate: written.append(rate) or 1 // (len(written) - 1)
    )
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError):
            rein.hold(RATE)
    assert written == [RATE, RATE]


def test_deleted_rules_come_back(side, be, rein):
    needs(programs=("nft",))
    rein.hold(RATE)
    side.run("nft flush ruleset")
    rein.sent_bytes()
    assert table_name(rein._interface.key[1]) in side.run("nft list ruleset")


def test_interface_is_found_by_lcs_route(side, be):
    """The LC is whoever listens on the other side."""
    with side.sending("tcp", LC_PORT, 1.0):
        until(lambda: "ESTAB" in side.run("ss -tn"))
        with LinkRein.open(None, (side.sink.pid,), [be], None, side.sink.pid) as rein:
            assert rein.name == "far"


def test_bytes_are_counted_without_classes(side):
    before = read_sent_bytes(NAME, side.here.pid)
    with side.sending("tcp", LC_PORT, 80.0):
        until(lambda: read_sent_bytes(NAME, side.here.pid) > before + 1_000_000)
    with pytest.raises(HostError, match="No such device"):
        read_sent_bytes("nowhere", side.here.pid)


def test_finding_writes_nothing(side, be):
    assert find_interface(NAME, (), side.here.pid) == NAME
    assert PLAIN in side.run(f"tc qdisc show dev {NAME}")
    with pytest.raises(HostError, match="'nowhere'"):
        find_interface("nowhere", ())


def test_no_interface_is_taken_without_callers(side, be):
    """Whichever has the default route need not be the one that the LC's answers take."""
    with pytest.raises(HostError, match=r"the LC is called from nowhere yet: .*be\.link"):
        LinkRein.open(None, (side.sink.pid,), [be], None, side.sink.pid)


def test_group_without_cgroup2_is_refused(side, be):
    paths = {one: path for one, path in be.paths.items() if be.layout.mounts[one].version == 1}
    if not paths:
        pytest.skip("this host has no v1 hierarchies")
    with pytest.raises(HostError, match="is in no cgroup2 hierarchy"):
        LinkRein.open(NAME, (), [Group(be.name, paths, be.layout, Knobs(None))], None, side.here.pid)
    assert PLAIN in side.run(f"tc qdisc show dev {NAME}")


@pytest.mark.parametrize("late", [False, True], ids=["there", "comes later"])
def test_pod_is_held_by_its_address(side, be, monkeypatch, late):
    """Its packets come to the interface from a network namespace of its own, and have no socket there."""
    monkeypatch.setattr(link, "FIND_SECONDS", 0.0)
    with (
        side.pod(be.directories if not late else ()) as pod,
        LinkRein.open(NAME, (), [be], None, side.here.pid) as rein,
    ):
        rein.hold(RATE)
        if late:
            be.attach(pod.here.pid)
            rein.sent_bytes()
        with side.sending("tcp", LC_PORT, LC_MBIT), pod.sending("tcp", BE_PORT, 0.0, be.directories):
            others, held = rates(rein)
    assert others > 0.85 * LC_MBIT * 125e3  # more where it makes up for a moment without a CPU
    assert others + held == pytest.approx(RATE, rel=0.1, abs=BURST_BYTES)


def test_vanished_interface_is_told(be):
    needs(CgroupController.PRESSURE, programs=("ip", "tc", "unshare", "nsenter"))
    with wire() as own:
        rein = LinkRein.open(NAME, (), [be], None, own.here.pid)
        own.run(f"ip link del {NAME}")
        with pytest.raises(HostError, match="has gone"):
            rein.sent_bytes()
        rein.close()


def test_restore_passes_over_vanished_interface(be, tmp_path):
    needs(CgroupController.PRESSURE, programs=("ip", "tc", "unshare", "nsenter"))
    with wire() as own, another_rlctl(own, be, tmp_path):
        pass
    report = restore(tmp_path)
    assert report.ok
    assert [one.path for one in report.skipped] == [journal_path(NAME)]


def test_foreign_cgroup_namespace_is_refused(side, be, tmp_path):
    """The kernel takes the rule there, and it matches nothing."""
    command = ["unshare", "--cgroup", sys.executable, "-c", OF_ANOTHER_RLCTL, be.name, str(tmp_path)]
    done = subprocess.run([*command, str(side.here.pid)], capture_output=True, text=True, timeout=60.0)
    assert "--cgroupns=host" in done.stderr
    assert PLAIN in side.run(f"tc qdisc show dev {NAME}")


def test_doctor_tries_what_rein_takes():
    """It leaves nothing behind, for it tries it where nobody is."""
    layout = needs(CgroupController.PRESSURE)
    assert probe_link(layout).present
    without = probe_link(Layout({}, layout.missing))
    assert not without.present
    assert "mount -t cgroup2" in without.reason


def test_doctor_names_missing_capability():
    needs(CgroupController.PRESSURE, programs=("setpriv",))
    asked = "from rlctl.envs.host.network.trial import why_no_link; print(why_no_link())"
    command = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", sys.executable, "-c", asked]
    assert "CAP_NET_ADMIN" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
