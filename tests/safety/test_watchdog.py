"""The watchdog process, spoken to over its socket; its plan writes plain files that stand for a group's."""

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.cgroup.emergency import EmergencyPlan, EmergencyWrite
from rlctl.safety import watchdog
from tests.waiting import PATIENCE_SECONDS, until

NOBODY = 2**22 + 1  # above the largest pid: nothing is ever killed by mistake
LONG = 600.0
INIT = 1  # lives whatever happens


def a_group(folder):
    folder.mkdir()
    (folder / "freeze").write_text("0\n")
    (folder / "quota").write_text("9\n")
    return folder


def is_safe(folder):
    return (folder / "freeze").read_text() + (folder / "quota").read_text() == "1\n0\n"


def a_plan(*folders):
    def step(folder, name, text):
        status = folder.stat()
        return EmergencyWrite(folder / name, text, (status.st_dev, status.st_ino), name, text)

    return EmergencyPlan(
        (tuple(step(one, "freeze", "1") for one in folders), tuple(step(one, "quota", "0") for one in folders))
    ).to_bytes()


class Running:
    """A watchdog and its controller's end of the socket."""

    def __init__(self, folder, lease=LONG, restore_after=LONG, pid=NOBODY, stderr=None, program=watchdog.__file__):
        self.lock, self.journal, self.restored = folder / "lock", folder / "journal", folder / "restored"
        self.journal.write_text("")
        restore = f"import sys; open({str(self.restored)!r}, 'w').write(' '.join(sys.argv[1:]))"
        words = (pid, lease, restore_after, self.lock, self.journal, sys.executable, "-S", "-c", restore)
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.settimeout(PATIENCE_SECONDS)
        self.words, self.said = 0, folder / "said"
        with theirs, self.said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, *map(str, words)],
                stdin=theirs.fileno(),
                stderr=stderr or said,
                start_new_session=True,
            )

    def say(self, verb, plan=None):
        self.words += 1
        word = f"{verb} {self.words}".encode()
        if plan is None:
            self.ours.send(word)
        else:
            with os.fdopen(os.memfd_create("plan"), "wb", buffering=0) as file:
                file.write(plan)
                socket.send_fds(self.ours, [word], [file.fileno()])
        assert int(self.ours.recv(32)) == self.words

    def end(self):
        self.ours.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as stack:

        def begin(folder=tmp_path, **options):
            running = Running(folder, **options)
            stack.callback(running.end)
            return running

        yield begin


def test_silence_makes_be_safe(start, tmp_path):
    group, running = a_group(tmp_path / "be"), start(lease=0.3)
    running.say("plan", a_plan(group))
    until(lambda: is_safe(group))
    until(lambda: "BE is at the safe allocation" in running.said.read_text())
    running.say("renew")
    until(lambda: "is back" in running.said.read_text())
    (group / "freeze").write_text("0\n")
    running.say("renew")

    def goes_safe_though_told_plans():
        running.say("plan", a_plan(group))
        return is_safe(group)

    until(goes_safe_though_told_plans)  # and the next silence counts again, however often BE's groups change
    assert running.process.poll() is None


def test_controller_that_only_tells_plans_is_ended(tmp_path, monkeypatch):
    """Each plan began the hold anew, so that it was never taken for hung."""
    (tmp_path / "journal").touch()
    hung = Gone(monkeypatch, 1.0, lambda _: None)
    hung.gone, ended, hung.end = False, [], lambda: ended.append(hung.now)
    monkeypatch.setattr(hung, "hear", lambda seconds: ended or Gone.hear(hung, seconds) or True)
    for _ in range(9):
        hung.now += 1.0
        watchdog.hold(hung, 5.0, str(tmp_path / "lock"), str(tmp_path / "journal"))
    assert ended
    assert 5.0 <= ended[0] < 7.0


def longest_pause_of(running, lease):
    """Renew for longer than the lease; between two answers of the watchdog lay at most the pause returned, seconds."""
    began = last = time.monotonic()
    longest = 0.0
    while last < began + 1.5 * lease:
        time.sleep(0.05)
        running.say("renew")
        last, before = time.monotonic(), last
        longest = max(longest, last - before)
    return longest


def test_renewals_keep_it_quiet(start, tmp_path):
    for lease in (1.0, 3.0, 9.0, 27.0):  # a longer one where the machine is so busy that we renew too late
        (folder := tmp_path / str(lease)).mkdir()
        group, running = a_group(folder / "be"), start(folder, lease=lease)
        running.say("plan", a_plan(group))
        if longest_pause_of(running, lease) < lease:
            break
    assert not is_safe(group)
    assert running.said.read_text() == ""


def test_death_is_noticed_at_once_whatever_lease(start, tmp_path):
    group, running = a_group(tmp_path / "be"), start()
    running.say("plan", a_plan(group))
    running.ours.close()
    until(lambda: is_safe(group))
    assert "has ended" in running.said.read_text()


def test_a_death_with_answers_unread_is_no_error(start, tmp_path):
    group, running = a_group(tmp_path / "be"), start()
    running.say("plan", a_plan(group))
    running.ours.send(b"renew 2")
    select.select([running.ours], [], [], PATIENCE_SECONDS)
    running.ours.close()
    until(lambda: is_safe(group))


def test_unread_leave_is_heeded_at_death(start, tmp_path):
    group, running = a_group(tmp_path / "be"), start()
    running.say("plan", a_plan(group))
    running.process.send_signal(signal.SIGSTOP)
    running.ours.send(b"renew 2")
    running.ours.send(b"leave 3")
    running.journal.unlink()
    running.ours.close()
    running.process.send_signal(signal.SIGCONT)
    assert running.process.wait(PATIENCE_SECONDS) == 0
    assert not is_safe(group)


def test_who_leaves_in_good_order_is_let_go(start, tmp_path):
    group, running = a_group(tmp_path / "be"), start(lease=0.2)
    running.say("plan", a_plan(group))
    running.say("leave")
    (group / "freeze").write_text("0\n")
    (group / "quota").write_text("9\n")
    running.journal.unlink()
    running.ours.close()
    assert running.process.wait(PATIENCE_SECONDS) == 0
    assert not is_safe(group)
    assert not running.restored.exists()


def test_who_dies_while_putting_back_is_finished_for(start, tmp_path):
    group, running = a_group(tmp_path / "be"), start(restore_after=0.5)
    running.say("plan", a_plan(group))
    running.say("leave")
    running.ours.close()
    running.process.wait(PATIENCE_SECONDS)
    assert running.restored.exists()
    assert not is_safe(group)


def test_who_stays_away_gets_the_originals_put_back(start, tmp_path):
    group, running = a_group(tmp_path / "be"), start(restore_after=0.3)
    running.say("plan", a_plan(group))
    running.ours.close()
    running.process.wait(PATIENCE_SECONDS)
    assert is_safe(group)
    assert running.restored.read_text() == "--force"  # it does not know that nobody is dead


def test_be_stays_held_after_hung_controller_was_ended(start, tmp_path):
    """The parent of this watchdog is a process that stops itself. Its successor hung over the same groups."""
    group = a_group(tmp_path / "be")
    script = (
        "import os, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import test_watchdog as t;"
        "folder = Path(sys.argv[2]); r = t.Running(folder, lease=0.2, restore_after=0.3, pid=os.getpid());"
        "r.say('plan', t.a_plan(folder / 'be')); print(r.process.pid, flush=True); os.kill(os.getpid(), 19)"
    )
    words = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as controller:
        pid = int(controller.stdout.readline())
        assert controller.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    said = tmp_path / "said"
    assert f"rlctl watchdog: ending the hung controller {controller.pid}\n" in said.read_text()
    until(lambda: "BE stays at the safe allocation for the next one" in said.read_text())
    (group / "freeze").write_text("0\n")
    until(lambda: is_safe(group))
    assert not (tmp_path / "restored").exists()
    os.kill(pid, signal.SIGTERM)
    until(lambda: (tmp_path / "restored").exists())
    until(lambda: (tmp_path / "restored").read_text() == "")  # the lock is free: no --force


def test_a_successor_is_left_alone(start, tmp_path):
    (impatient := tmp_path / "impatient.py").write_text(
        Path(watchdog.__file__).read_text().replace("SUCCESSOR_SECONDS = 40.0", "SUCCESSOR_SECONDS = 0.5")
    )
    group, running = a_group(tmp_path / "be"), start(restore_after=LONG, program=impatient)
    running.say("plan", a_plan(group))
    with held(running.lock):
        running.ours.close()
        assert running.process.wait(PATIENCE_SECONDS) == 0
    assert not running.restored.exists()
    assert not is_safe(group), "it is the successor's business"
    assert "another rlctl has taken over" in running.said.read_text()


class Gone:
    """A controller that has ended, as `hold` sees it: pauses take no time, but move the clock.

    Args:
        slowness: How much longer than it should a pause takes on a busy machine.
        meanwhile: Called at the end of each, with the time.
    """

    pid, gone, renewed_seconds = NOBODY, True, 0.0

    def __init__(self, monkeypatch, slowness, meanwhile):
        self.now, self.written, self.plan = 0.0, [], self
        self._slowness, self._meanwhile = slowness, meanwhile
        clock = SimpleNamespace(monotonic=lambda: self.now, strftime=time.strftime)
        monkeypatch.setattr(watchdog, "time", clock)

    def enforce(self):
        self.written.append(self.now)
        return []

    repeat = enforce

    def hear(self, seconds):
        self.now += self._slowness * seconds
        self._meanwhile(self.now)
        return False


@pytest.mark.parametrize(("restore_after", "slowness", "ends"), [(30.0, 1.0, 65.0), (1.0, 2.0, 35.0)])
def test_long_failing_start_keeps_the_hold(tmp_path, monkeypatch, restore_after, slowness, ends):
    """Its runtimes did not answer: it counted as a successor, or kept `rlctl restore` out, and BE stayed frozen."""
    lock, journal = tmp_path / "lock", tmp_path / "journal"
    journal.touch()
    with contextlib.ExitStack() as starting:
        starting.enter_context(held(lock, INIT))
        gone = Gone(monkeypatch, slowness, lambda now: now >= 35.0 and starting.close())
        assert watchdog.hold(gone, restore_after, str(lock), str(journal)) == "away"
    assert 35.0 <= gone.written[0] < 38.0
    assert ends <= gone.now < ends + 3.0, "the time that it took did not count"


def test_while_somebody_restores_nothing_is_written(start, tmp_path):
    """Between its look at the journal and its write `restore` once set BE free, and BE was frozen again for good."""
    group, running = a_group(tmp_path / "be"), start(lease=0.2)
    running.say("plan", a_plan(group))
    until(lambda: "BE is at the safe allocation" in running.said.read_text())
    with held(running.lock):
        for name, text in (("freeze", "0\n"), ("quota", "9\n")):
            (group / name).write_text(text)
        time.sleep(1.0)  # longer than its longest pause
        assert not is_safe(group)
        running.journal.unlink()
        assert running.process.wait(PATIENCE_SECONDS) == 0
    assert not running.restored.exists()
    assert "taken over" not in running.said.read_text()


@contextlib.contextmanager
def held(lock, pid=None):
    """The state directory, as another rlctl holds it, by default this process."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{pid or os.getpid()}\n")
        file.flush()
        yield


@pytest.mark.parametrize("holder", ["", "nonsense", str(NOBODY)])
def test_a_lock_of_nobody_is_no_successor(tmp_path, holder):
    (tmp_path / "lock").write_text(holder)
    assert watchdog.successor(str(tmp_path / "lock"), 1) == 0
    assert watchdog.successor(str(tmp_path / "absent"), 1) == 0


def test_originals_put_back_by_operator_end_hold(start, tmp_path):
    running = start(lease=0.2)
    running.say("plan", a_plan(a_group(tmp_path / "be")))
    until(lambda: "BE is at the safe allocation" in running.said.read_text())
    running.journal.unlink()
    assert running.process.wait(PATIENCE_SECONDS) == 0
    assert not running.restored.exists()


def test_another_group_of_same_name_is_not_written(start, tmp_path):
    ours, replaced = a_group(tmp_path / "ours"), a_group(tmp_path / "be")
    running = start()
    running.say("plan", a_plan(ours, replaced))
    replaced.rename(tmp_path / "removed")
    for name in ("freeze", "quota"):
        (tmp_path / "removed" / name).unlink()
    other = a_group(tmp_path / "be")
    running.ours.close()
    until(lambda: is_safe(ours))
    until(lambda: "BE is at the safe allocation" in running.said.read_text())
    assert not is_safe(other)


def test_group_replaced_before_plan_arrived_is_not_written(start, tmp_path):
    ours, replaced = a_group(tmp_path / "ours"), a_group(tmp_path / "be")
    plan = a_plan(ours, replaced)
    replaced.rename(tmp_path / "kept")
    other, running = a_group(tmp_path / "be"), start()
    running.say("plan", plan)
    running.ours.close()
    until(lambda: is_safe(ours))
    assert not is_safe(other)


def test_refused_is_tried_again_without_delay(start, tmp_path):
    group, other = a_group(tmp_path / "be\x1b[2J"), a_group(tmp_path / "other")
    (group / "freeze").unlink()
    (group / "freeze").mkdir()  # cannot be written, even by root
    running = start()
    running.say("plan", a_plan(group, other))
    running.ours.close()
    until(lambda: is_safe(other) and (group / "quota").read_text() == "0\n")
    until(lambda: "Is a directory" in running.said.read_text())
    assert "\x1b" not in running.said.read_text(), "a name cannot steer who reads the messages"
    (group / "freeze").rmdir()
    (group / "freeze").write_text("0\n")
    until(lambda: is_safe(group))


def test_a_plan_can_be_replaced(start, tmp_path):
    first, second, running = a_group(tmp_path / "first"), a_group(tmp_path / "second"), start()
    running.say("plan", a_plan(first))
    running.say("plan", a_plan(second))
    running.ours.close()
    until(lambda: is_safe(second))
    assert not is_safe(first)


def test_signals_end_it_only_without_controller(start, tmp_path):
    group, running = a_group(tmp_path / "be"), start()
    running.say("plan", a_plan(group))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        running.process.send_signal(number)
        running.say("renew")
    assert not is_safe(group)
    running.ours.close()
    until(lambda: "BE is at" in running.said.read_text())
    running.process.send_signal(signal.SIGTERM)
    running.process.wait(PATIENCE_SECONDS)
    assert is_safe(group)
    assert running.restored.exists()


def test_stuck_reader_does_not_stop_it(start, tmp_path):
    group = a_group(tmp_path / "be")
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(write, b"x" * 4096):
            pass
    os.set_blocking(write, True)
    running = start(stderr=write)
    os.close(write)
    running.say("plan", a_plan(group))
    running.ours.close()
    until(lambda: is_safe(group))
    os.close(read)


def test_it_is_small_and_stands_apart(start, tmp_path):
    folders = [a_group(tmp_path / f"be{number}") for number in range(100)]
    running = start()
    running.say("plan", a_plan(*folders))
    proc = Path(f"/proc/{running.process.pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    assert int(status["VmRSS"].split()[0]) <= 15 * 1024
    assert os.getsid(running.process.pid) == running.process.pid
    opened = {os.readlink(file) for file in (proc / "fd").iterdir() if int(file.name) > 2}
    assert opened <= {*map(str, folders), "anon_inode:[pidfd]"}


BYTES = st.binary(min_size=1).filter(lambda data: not {0, 10} & {*data})
TEXT = BYTES.map(os.fsdecode)  # a name need not be UTF-8
NAMES = BYTES.filter(lambda data: b"/" not in data and data.strip(b".")).map(os.fsdecode)
STEPS = st.builds(
    lambda name, text, probe, wanted: EmergencyWrite(Path("/none") / name, text, (7, 9), probe, wanted),
    NAMES,
    TEXT,
    NAMES,
    TEXT,
)


@given(st.lists(st.lists(STEPS, min_size=1, max_size=3), max_size=3))
def test_any_plan_arrives_as_it_was_written(stages):
    read = watchdog.Plan(EmergencyPlan(tuple(map(tuple, stages))).to_bytes())
    assert [[(s.identity, s.name, s.text, s.probe, s.wanted) for s in stage] for stage in read.stages] == [
        [(b"7:9", *map(os.fsencode, (s.path.name, s.text, s.probe, s.wanted))) for s in stage] for stage in stages
    ]
