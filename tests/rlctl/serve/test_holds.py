"""What people say to a running service: in force within a tick, over when it was said to be, not forgotten."""

import datetime
import itertools
import json
import os
import pwd
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlctl.commands.operator import ask
from rlctl.config.sections import ScheduleEntry
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing
from rlctl.log.kept import MemoryRecorder
from rlctl.log.record import Tee
from rlctl.loop.control import Controller
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Bound, Reason, Verdict
from rlctl.serve.control_socket import MOST_LETTERS, SOCKET, ControlSocket, check_socket
from rlctl.serve.holds import HOLDS, OperatorHolds
from tests.doubles.clock import Clock
from tests.doubles.plant import FakePlant
from tests.waiting import until

LIMITS = Limits(cpus=4)
PROFILE = load_profile("responsive")
NOON = datetime.datetime(2026, 11, 23, 12).timestamp()  # a Monday


class Loop:
    """A control loop whose policy wants all, beside somebody who says something."""

    def __init__(self, always, folder, schedule=(), clock=None):
        self.clock, self.ticks = clock or Clock(NOON), MemoryRecorder()
        self.holds = OperatorHolds(folder, schedule, 0.01, self.clock)
        plant = FakePlant(LIMITS, loads=(0.1,))
        policy, recorder = always(lambda o: LIMITS.full), Tee(self.ticks, self.holds)
        shield = Shield(PROFILE, LIMITS)
        self.controller = Controller(plant, policy, shield, recorder, said=self.holds.bounds)
        self.run(40)

    def run(self, ticks):
        for _ in range(ticks):
            self.controller.plant.wait()
            self.controller.tick()

    def said(self, **request):
        """Ask while the loop ticks on."""
        answers = []
        asking = threading.Thread(target=lambda: answers.append(self.holds.answer(request, "root")))
        asking.start()
        while asking.is_alive():
            self.run(1)
        return answers[0]

    @property
    def be(self):
        return self.ticks.ticks[-1].applied


@pytest.fixture
def loop(always, tmp_path):
    return Loop(always, tmp_path)


def test_answered_pause_is_in_force_until_ended(loop):
    assert not loop.be.frozen
    answer = loop.said(do="pause", why="a\nbackup \x1b[31m")
    assert loop.be == LIMITS.safe
    assert "paused by root: a backup ?[31m" in answer["said"]
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer, "plain JSON, which knows no infinity"
    assert "NOT" not in answer["said"]
    (bound,) = [one for one in loop.ticks.ticks[-1].verdict.bounds if one.reason is Reason.OPERATOR]
    assert bound.guard == "pause"
    loop.said(do="resume")
    loop.run(20)
    assert not loop.be.frozen


def test_pause_is_in_force_without_a_tick(loop):
    """What ends it waits for the tick."""
    holds, answers = loop.holds, []

    def saying(**request):
        asking = threading.Thread(target=lambda: answers.append(holds.answer(request, "root")["said"]))
        asking.start()
        return asking

    assert holds.urgent(LIMITS) is None
    paused = saying(do="pause")
    until(lambda: holds._urgent)
    assert holds.urgent(LIMITS) == LIMITS.safe
    assert holds.urgent(LIMITS) is None, "once"
    holds.note_written(LIMITS.safe)
    paused.join()
    assert "frozen" in answers[0]
    assert "NOT" not in answers[0]
    resumed = saying(do="resume")
    until(lambda: not holds._holds)
    assert holds.urgent(LIMITS) is None
    limited = saying(do="limit", quota_cpus=0.5)
    until(lambda: holds._urgent)
    assert holds.urgent(LIMITS) == LIMITS.full.but(quota_cpus=0.5)
    holds.note_written(LIMITS.safe)
    limited.join()
    assert resumed.is_alive(), "what frees BE is in force with the next tick, whatever a look writes"
    while resumed.is_alive():
        loop.run(1)
    assert answers[2].startswith("over: ")


def test_limit_holds_beside_pause_and_ends_by_itself(loop):
    loop.said(do="limit", quota_cpus=0.5, until=NOON + 60.0)
    loop.said(do="pause")
    loop.said(do="resume")
    loop.run(60)
    assert loop.be.quota_cpus == 0.5
    assert loop.be.cpuset_cpus == 4
    loop.clock.now += 61.0
    loop.run(60)
    assert loop.be.quota_cpus > 0.5
    assert loop.said(do="status")["holds"] == []
    assert loop.said(do="release")["said"] == "there was no limit"


def test_clock_ahead_for_moment_ends_no_hold(always, loop, tmp_path, monkeypatch):
    """One tick two hours ahead, and a pause of one hour was gone from the file as well."""
    loop.said(do="pause", until=NOON + 3600.0)
    for ahead in (7200.0, -7200.0):
        loop.clock.now += ahead
        loop.run(2)
    assert loop.be == Loop(always, tmp_path, clock=Clock(NOON)).be == LIMITS.safe
    monkeypatch.setattr("rlctl.serve.holds.KEPT_SECONDS", 0.0)
    loop.clock.now += 7200.0
    loop.run(1)
    assert json.loads((tmp_path / HOLDS).read_text())["holds"] == []


def test_what_people_say_is_no_mistake_of_policy():
    said = Bound("pause", Reason.OPERATOR, LIMITS.safe)
    ruled = Bound("ceiling", Reason.CEILING, LIMITS.minimum)
    assert Verdict(LIMITS.safe, LIMITS.full, (said,)).overridden
    assert not Verdict(LIMITS.safe, LIMITS.full, (said,)).overridden_by_guard
    assert Verdict(LIMITS.safe, LIMITS.full, (said, ruled)).overridden_by_guard


def test_a_restart_forgets_nothing_but_what_is_over(always, tmp_path):
    clock = Clock(NOON)
    first = Loop(always, tmp_path, clock=clock)
    first.said(do="limit", quota_cpus=1.0, until=NOON + 60.0)
    first.said(do="pause", why="night")
    clock.now += 61.0
    again = Loop(always, tmp_path, clock=clock)
    assert again.be == LIMITS.safe
    assert [hold["kind"] for hold in again.said(do="status")["holds"]] == ["pause"]
    again.said(do="resume")
    assert Loop(always, tmp_path, clock=clock).said(do="status")["holds"] == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 100_000, '{"holds": [{"kind": "limit", "quota_cpus": -1, "until_seconds": null}]}',
     '{"holds": [{"kind": "free"}]}', '{"holds": [{"kind": "limit", "quota_cpus": "all"}]}', "\0" * 99,
     '{"holds": [{"kind": "limit", "quota_cpus": NaN, "who": "", "why": "", "since_seconds": 0, "until_seconds": 1}]}'],
)  # fmt: skip
def test_file_that_nobody_can_read_is_pause(always, tmp_path, text, caplog):
    (tmp_path / HOLDS).write_text(text)
    loop = Loop(always, tmp_path)
    assert loop.be == LIMITS.safe
    assert "cannot be read, so BE is paused" in caplog.text
    loop.said(do="resume")
    assert json.loads((tmp_path / HOLDS).read_text())["holds"] == []


def a_link(path):
    """To a file that says that nobody holds BE."""
    (path.parent / "elsewhere").write_text('{"holds": []}')
    path.symlink_to("elsewhere")


def too_much(path):
    path.write_text(" " * (1 << 17) + '{"holds": []}')


@pytest.mark.parametrize("planted", [a_link, os.mkfifo, Path.mkdir, too_much])
def test_file_of_another_kind_is_a_pause(always, tmp_path, planted, caplog):
    """A FIFO once hung the start, before the watchdog knew of anything to hold."""
    planted(tmp_path / HOLDS)
    assert Loop(always, tmp_path).be == LIMITS.safe
    (said,) = [record.getMessage() for record in caplog.records if "so BE is paused" in record.getMessage()]
    assert str(tmp_path / HOLDS) in said


def test_full_disk_is_told_and_be_is_held(loop, tmp_path, monkeypatch):
    def full(path, data, **_):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("rlctl.serve.holds.write_json", full)
    assert "a restart will not know it: No space left" in loop.said(do="pause")["said"]
    assert loop.be == LIMITS.safe


def test_full_disk_keeps_it_once_there_is_room(loop, tmp_path, monkeypatch, caplog):
    def full(path, data, **_):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("rlctl.serve.holds.write_json", full)
        loop.said(do="pause")
        loop.run(5)
    assert caplog.text.count("a restart will not know") == 1
    loop.run(1)
    assert [hold["kind"] for hold in json.loads((tmp_path / HOLDS).read_text())["holds"]] == ["pause"]


def test_who_replaces_another_s_word_hears_of_it(loop):
    loop.said(do="pause", why="debugging the database")
    said = loop.said(do="pause", until=NOON + 600.0)["said"]
    assert "in place of: paused by root: debugging the database" in said


@pytest.mark.parametrize(("quota", "told"), [(3.9, False), (4.0, True), (99.0, True)])
def test_limit_that_limits_nothing_is_none(loop, quota, told):
    said = loop.said(do="limit", quota_cpus=quota)["said"]
    assert ("that limits nothing: BE may have 4 CPU of this host anyway" in said) is told
    loop.run(20)
    assert (loop.be.quota_cpus == UNLIMITED) is told, "nor is a quota written"


def test_a_loop_that_stands_still_is_said(always, tmp_path, monkeypatch):
    loop = Loop(always, tmp_path)
    monkeypatch.setattr(loop.holds, "_patience_seconds", 0.01)
    with pytest.raises(HostError, match=r"^BE is paused by root; .* NOT in force yet"):
        loop.holds.answer({"do": "pause"}, "root")
    assert [hold["kind"] for hold in loop.holds.answer({"do": "status"}, "root")["holds"]] == ["pause"], "it stays"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"do": "unfreeze"}, "unknown request"),
        ({}, "unknown request"),
        ({"do": "limit"}, "no number"),
        ({"do": "limit", "quota_cpus": True}, "no number"),
        ({"do": "limit", "quota_cpus": float("nan")}, "no number"),
        ({"do": "limit", "quota_cpus": -1}, "pause"),
        ({"do": "pause", "until": NOON - 1.0}, "in the past"),
        ({"do": "pause", "until": NOON + 1e9}, "a year"),
        ({"do": "pause", "until": "18:00"}, "no number"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(loop, request_, said):
    with pytest.raises(ConfigError, match=said):
        loop.holds.answer(request_, "root")
    assert loop.said(do="status")["holds"] == []


def entry(**given):
    return ScheduleEntry.model_validate({"name": "backup", "begins": "22:00", "ends": "03:30", "be_cpus": 0, **given})


@pytest.mark.parametrize(
    ("given", "moment", "covered"),
    [
        ({}, "2026-11-23T21:59", False),
        ({}, "2026-11-23T22:00", True),
        ({}, "2026-11-24T03:29", True),
        ({}, "2026-11-24T03:30", False),
        ({"days": "sun"}, "2026-11-23T01:00", True),  # the night from Sunday to Monday
        ({"days": "mon-fri"}, "2026-11-28T01:00", True),  # the one from Friday to Saturday
        ({"days": "mon-fri"}, "2026-11-28T23:00", False),
        ({"days": ["sat", "sun"], "begins": 600, "ends": "24:00"}, "2026-11-28T10:00", True),
        ({"days": "fri-mon", "begins": "00:00", "ends": "24:00"}, "2026-11-24T10:00", False),
    ],
)
def test_times_of_a_schedule(given, moment, covered):
    assert entry(**given).covers(datetime.datetime.fromisoformat(moment)) is covered


@pytest.mark.parametrize(
    "given",
    [
        {"begins": "22"},
        {"begins": 8},
        {"begins": "22:60"},
        {"ends": "25:00"},
        {"days": "mo"},
        {"days": []},
        {"be_cpus": -1},
        {"ends": True},
    ],
)
def test_a_wrong_schedule_is_refused(given):
    with pytest.raises(ValueError, match=r"day|greater|at least 1"):
        entry(**given)


def test_schedule_holds_be_at_its_time(always, tmp_path):
    loop = Loop(always, tmp_path, [entry(begins="12:00", ends="13:00")])
    assert loop.be == LIMITS.safe
    assert loop.ticks.ticks[-1].verdict.decisive[-1].reason is Reason.SCHEDULE
    loop.clock.now += 3600.0
    loop.run(20)
    assert not loop.be.frozen
    half = Loop(always, tmp_path, [entry(begins="12:00", ends="13:00", be_cpus=0.5)])
    half.run(60)
    assert half.be == Allocation(0.5, 4)


def test_log_names_time_of_schedule_that_begins(always, tmp_path, caplog):
    """Once it had the word `schedule`, and which of several it was stood in the tick log alone."""
    caplog.set_level("INFO", "rlctl.serve")
    times = [entry(begins="12:00", ends="13:00"), entry(name="office", begins="12:30", ends="14:00", be_cpus=0.5)]
    loop = Loop(always, tmp_path, times)
    for _ in range(2):
        loop.clock.now += 3600.0
        loop.run(2)
    assert [record.getMessage() for record in caplog.records][1:] == [
        "schedule: backup begins, BE gets 0 CPU at most until 13:00",
        "schedule: backup is over",
        "schedule: office begins, BE gets 0.5 CPU at most until 14:00",
        "schedule: office is over",
    ]


@pytest.mark.parametrize(("zone", "said"), [("UTC0", "UTC (UTC+0000)"), ("CET-1CEST,M3.5.0,M10.5.0", "CET (UTC+0100)")])
def test_log_says_once_in_which_zone_schedule_is(monkeypatch, caplog, zone, said):
    """In a container that is UTC, wherever the host is."""
    caplog.set_level("INFO", "rlctl.serve")
    with monkeypatch.context() as there:
        there.setenv("TZ", zone)
        time.tzset()
        OperatorHolds(None, [entry()], 1.0, Clock(NOON))
    time.tzset()
    OperatorHolds(None, (), 1.0, Clock(NOON))
    assert [record.getMessage() for record in caplog.records] == [f"schedule: its times are in {said}"]


@pytest.fixture
def asked(tmp_path):
    """A socket whose service repeats what it is asked, and who asked."""
    with_socket = ControlSocket(tmp_path / SOCKET, None, lambda request, who: {"ok": True, "said": who, **request})
    yield tmp_path
    with_socket.close()
    assert not (tmp_path / SOCKET).exists()


def test_the_kernel_says_who_asks(asked):
    mine = (one.pw_name for one in pwd.getpwall() if one.pw_uid == os.getuid())
    name = next(mine, f"user {os.getuid()}")
    assert ask(asked, {"do": "status"})["said"] == f"{name} (pid {os.getpid()})"
    assert stat.S_IMODE((asked / SOCKET).stat().st_mode) == 0o600


@pytest.mark.parametrize("line", [b"", b"{", b"[]\n", b"\xff\xfe\n", b"x" * 100_000, b'{"do": 1e999}\n'])
def test_garbage_is_answered_and_next_is_served(asked, line):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(10)
        peer.connect(str(asked / SOCKET))
        try:
            peer.sendall(line)
            peer.shutdown(socket.SHUT_WR)
            peer.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert ask(asked, {"do": "status"})["ok"]


def test_a_moment_without_descriptors_ends_no_socket(tmp_path, monkeypatch):
    monkeypatch.setattr("rlctl.serve.control_socket.READ_SECONDS", 0.05)
    served = ControlSocket(tmp_path / SOCKET, None, lambda request, who: {"ok": True, "said": who})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            peer.connect(str(tmp_path / SOCKET))
            time.sleep(0.2)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert ask(tmp_path, {"do": "status"})["ok"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        served.close()


def test_service_that_fails_says_so_and_goes_on(tmp_path):
    def answer(request, who):
        if request["do"] == "break":
            raise ZeroDivisionError
        raise ConfigError("no such thing")

    with_socket = ControlSocket(tmp_path / SOCKET, None, answer)
    try:
        with pytest.raises(HostError, match="see the log"):
            ask(tmp_path, {"do": "break"})
        with pytest.raises(ConfigError, match="no such thing"):
            ask(tmp_path, {"do": "what"})
    finally:
        with_socket.close()


def test_a_pause_waits_behind_no_other_request(tmp_path):
    """A `resume` waits for a tick, which may be a minute away."""
    ticked = threading.Event()

    def answer(request, who):
        return {"ok": request["do"] == "pause" or ticked.wait(10.0), "said": ""}

    with_socket = ControlSocket(tmp_path / SOCKET, None, answer)
    try:
        resumed = threading.Thread(target=ask, args=(tmp_path, {"do": "resume"}))
        resumed.start()
        assert ask(tmp_path, {"do": "pause"})["ok"]
        assert resumed.is_alive()
        ticked.set()
        resumed.join()
    finally:
        with_socket.close()


def test_without_a_service_the_way_out_is_said(tmp_path):
    with pytest.raises(HostError, match="give its --config or --state"):
        ask(tmp_path, {"do": "status"})
    (tmp_path / SOCKET).write_text("no socket")
    with pytest.raises(HostError):
        ask(tmp_path, {"do": "status"})
    with pytest.raises(HostError, match="no socket can be made there"):
        ControlSocket(tmp_path / SOCKET, None, lambda *_: {})
    with pytest.raises(ConfigError, match="too long"):
        ControlSocket(tmp_path / ("x" * 200), None, lambda *_: {})
    with pytest.raises(ConfigError, match=r"control\.group"):
        ControlSocket(tmp_path / "s", "no-such-group", lambda *_: {})


def test_longest_path_the_kernel_takes_is_allowed(tmp_path):
    longest = tmp_path / ("x" * (MOST_LETTERS - len(f"{tmp_path}/")))
    assert check_socket(longest, None) is None
    ControlSocket(longest, None, lambda *_: {}).close()
    with pytest.raises(ConfigError, match="is too long for a socket's name, 107 letters"):
        check_socket(Path(f"{longest}x"), None)


def test_group_refused_to_the_socket_is_told(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refused)
    with pytest.raises(PermissionMissing, match="SupplementaryGroups=nogroup"):
        ControlSocket(tmp_path / SOCKET, "nogroup", lambda *_: {})
    assert not (tmp_path / SOCKET).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize(("group", "allowed"), [(None, False), ("nogroup", True)])
def test_somebody_else_is_refused_unless_group_says_so(tmp_path, group, allowed):
    for folder in itertools.takewhile(
        lambda one: one.name.startswith(("test_", "popen-", "pytest-")), (tmp_path, *tmp_path.parents)
    ):
        folder.chmod(0o755)
    served = ControlSocket(tmp_path / SOCKET, group, lambda request, who: {"ok": True, "said": who})
    if group is None:
        (tmp_path / SOCKET).chmod(0o666)  # even if somebody opened it: the kernel's word counts
    code = f"""
import os, socket, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
peer = socket.socket(socket.AF_UNIX); peer.settimeout(10); peer.connect({str(tmp_path / SOCKET)!r})
time.sleep(0.2)  # the answer does not come before the request
peer.sendall(b'{{"do": "pause"}}\\n'); print(peer.recv(4096).decode())
"""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    finally:
        served.close()
    answer = json.loads(done.stdout)
    assert answer["ok"] is allowed, done.stderr
    assert "nobody" in answer["said"]
    if not allowed:
        assert answer["exit_code"] == PermissionMissing.exit_code
