"""`rlctl serve` on this machine: its own control groups, a busy BE, a clean stop, everything as before."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rlctl.cli import main
from rlctl.commands.operator import ask
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from tests.doubles.tick_logs import read_ticks
from tests.needs import needs
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.host

FROZEN = {("freezer.state", "FROZEN\n"), ("cgroup.freeze", "1\n")}
NAME = f"rlctl-test-serve-{os.getpid()}"
KNOBS = {
    *("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "cpuset.cpus", "freezer.state"),
    *("cpu.max", "cpu.weight", "cpu.idle", "cgroup.freeze"),
}


@pytest.fixture
def groups():
    """An LC and a BE group below one parent, each with a sleeping process: the parent's name, BE's folders."""
    layout = needs(CgroupController.CPUACCT, cpus=2)
    with contextlib.ExitStack() as stack:
        parent, lc, be = (stack.enter_context(a_group(layout, NAME + child)) for child in ("", "/lc", "/be"))
        for group in (lc, be):
            group.cpuset.set_cpus({0, 1})  # v2 begins with an empty list, which the kernel does not take back
            group.attach(stack.enter_context(a_sleeper()).pid)
        yield parent.name, set(be.directories)
        be.freezer.order(False)  # a frozen process of v1 does not die


@contextlib.contextmanager
def a_group(layout, name):
    group = Group.create(layout, name, Knobs(None))
    try:
        yield group
    finally:
        group.remove()


@contextlib.contextmanager
def a_sleeper():
    child = subprocess.Popen(["sleep", "600"])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def a_busy_one(folders):
    """A process of BE that takes what it gets."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for folder in folders:
            (folder / "cgroup.procs").write_text(str(child.pid))
        yield child
    finally:
        child.kill()
        child.wait()


def knobs(folders):
    return {
        str(folder / name): (folder / name).read_text() for folder in folders for name in KNOBS & {*os.listdir(folder)}
    }


def ordered_frozen(values):
    return any((Path(file).name, text) in FROZEN for file, text in values.items())


def written(groups, tmp_path, more=""):
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"""
tick_seconds: 0.2
lc:
  workload: {{kind: cgroup, path: /{groups}/lc}}
  slo: {{target_milliseconds: 10, max_load_rps: 100}}
  latency: {{kind: jsonl, path: {tmp_path}/requests.jsonl}}
be:
  workloads: [{{kind: cgroup, path: /{groups}/be}}]
policy: {{name: static}}
state_directory: {tmp_path}/state
log: {{directory: {tmp_path}/log}}
{more}
"""
    )
    return path


def has_ticks(path, count):
    return path.exists() and len(list(read_ticks(path))) >= count


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "rlctl", "serve", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def served(*words, number=signal.SIGTERM):
    """The service while the block runs; then a signal ends it, with code 0, and `out` and `err` are what it said."""
    process = start(*words)
    try:
        yield process
        process.send_signal(number)
        process.out, process.err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, process.err


def said(*words, state):
    """What a command ends with and says, without a process of its own."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([*words, "--state", str(state)])
    return code, out.getvalue()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_blind_controller_freezes_be_signal_restores_all(groups, tmp_path, number):
    parent, folders = groups
    before, ticks = knobs(folders), tmp_path / "log" / "ticks.jsonl"
    with served("--config", written(parent, tmp_path), "--json", number=number) as process:
        until(lambda: has_ticks(ticks, 3), process)
        during = knobs(folders)
    assert f"LC lc: cgroup /{parent}/lc; p95 to stay below 10 ms; latency from jsonl" in process.err
    assert "policy static under shield" in process.err
    assert ordered_frozen(during), "no latency was ever seen, so BE may not run"
    assert knobs(folders) == before
    assert json.loads(process.out.splitlines()[-1])["event"] == "end"
    assert all(tick["applied"]["frozen"] for tick in read_ticks(ticks))


@pytest.mark.slow
def test_journal_that_is_removed_meanwhile_costs_no_original(groups, tmp_path):
    """Once: exit code 75, BE left restricted with nobody to watch it, and its originals lost."""
    parent, folders = groups
    before, ticks, journal = knobs(folders), tmp_path / "log" / "ticks.jsonl", tmp_path / "state" / "journal.jsonl"
    with served("--config", written(parent, tmp_path)) as process:
        until(lambda: has_ticks(ticks, 3), process)
        assert knobs(folders) != before
        journal.unlink()
        until(journal.exists, process)
    assert "written anew" in process.err
    assert knobs(folders) == before


@pytest.mark.slow
def test_task_that_left_freezer_is_told(groups, tmp_path):
    """A busy task of BE outside the groups that hold it: `frozen; used .98 CPU` was once all that could be seen."""
    parent, folders = groups
    layout = Layout.detect()
    if layout.mount(CgroupController.FREEZER).path == layout.mount(CgroupController.CPUACCT).path:
        pytest.skip("cgroup v2: whoever leaves the group's freezer leaves its account of CPU time too")
    ticks = tmp_path / "log" / "ticks.jsonl"
    with a_busy_one(folders) as busy:
        for controller in (CgroupController.CPU, CgroupController.FREEZER):
            (layout.mount(controller).path / "cgroup.procs").write_text(str(busy.pid))
        with served("--config", written(parent, tmp_path)) as process:
            until(lambda: any(overruns(ticks)), process)
            found = next(overruns(ticks))
            assert found["applied"]["frozen"]
            assert found["readings"]["be_cpus"]["value"] > 0.1, "beside other work"
            assert any(f"process {busy.pid} " in event for tick in read_ticks(ticks) for event in tick["events"])


@contextlib.contextmanager
def requests_in(path):
    """A service's log: 100 requests of a millisecond every tenth of a second."""
    ended = threading.Event()

    def go_on():
        with path.open("a") as log:
            while not ended.wait(0.1):
                log.write('{"latency_seconds": 0.001}\n' * 100)
                log.flush()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_learned_of_a_host_survives_a_restart(groups, tmp_path):
    """Nobody says the maximum load: it is learned, and so is what the host bears while BE is busy."""
    parent, folders = groups
    config, ticks = written(parent, tmp_path), tmp_path / "log" / "ticks.jsonl"
    text = config.read_text().replace(", max_load_rps: 100", "").replace("name: static", "name: learned-table")
    config.write_text(text.replace("be:\n", "be:\n  weight: leave\n"))  # at the least weight BE would have all of it
    before, told = knobs(folders), []
    with requests_in(tmp_path / "requests.jsonl"), a_busy_one(folders):
        for _ in range(2):
            ticks.unlink(missing_ok=True)
            with served("--config", config) as process:
                until(lambda: any(" held here" in note for note in notes(ticks)), process)
            told.append(process.err)
    assert knobs(folders) == before
    assert "maximum load of lc: " in told[0]
    assert "goes on with what it knew" not in told[0]
    assert "maximum load of lc goes on with what it knew of this host " in told[1]
    assert "experience goes on with what it knew of this host " in told[1]
    assert set(json.loads((tmp_path / "state" / "memory.json").read_text())["learned"]) == {
        "experience",
        "maximum load of lc",
    }


@pytest.mark.slow
def test_between_ticks_late_requests_hold_be(groups, tmp_path):
    """Another program that sets the quota free in step with the ticks once had BE free nearly all of the time."""
    parent, folders = groups
    config, ticks, requests = written(parent, tmp_path), tmp_path / "log" / "ticks.jsonl", tmp_path / "requests.jsonl"
    text = config.read_text().replace("tick_seconds: 0.2", "tick_seconds: 2").replace("rps: 100", "rps: 5000")
    config.write_text(text)
    (quota,) = [path for folder in folders for name in QUOTAS if (path := folder / name).exists()]
    free, before = QUOTAS[quota.name], knobs(folders)

    def running():
        """BE has more than its minimum, so that there is something to take from it."""
        applied = [tick["applied"] for tick in shown(ticks)][-1:]
        return any(not one["frozen"] and one["quota_cpus"] > 0.1 for one in applied)

    def answered_thrice_within_a_period():
        """Where nothing is done between the ticks there is one answer in each."""
        seen, ours = len([*shown(ticks)]), quota.read_text()
        for _ in range(3):
            quota.write_text(free)
            until(lambda: quota.read_text() == ours or len([*shown(ticks)]) > seen, process)
        return len([*shown(ticks)]) == seen

    def limited_within_a_period():
        """A word is in force before the tick, and its end at the next one."""
        seen, before_text = len([*shown(ticks)]), quota.read_text()
        ask(tmp_path / "state", {"do": "limit", "quota_cpus": 0.15})
        at_once = quota.read_text() != before_text and len([*shown(ticks)]) == seen
        ask(tmp_path / "state", {"do": "release"})
        return at_once

    def held():
        """Late requests while BE runs; the shield holds it by itself after those that came too late for the guard."""
        with requests.open("a") as log:
            log.write('{"latency_seconds": 0.5}\n' * 300 * running())
        return [tick for tick in shown(ticks) if "alarm" in tick]

    with requests_in(requests), a_busy_one(folders), served("--config", config) as process:
        until(running, process)
        until(answered_thrice_within_a_period, process)
        until(limited_within_a_period, process)
        alarms = until(held, process)
        words = subprocess.run(
            [sys.executable, "-m", "rlctl", "why", "tick", str(alarms[0]["tick"]), "--log", str(tmp_path / "log")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert alarms[0]["alarm"]["sign"] == "late-requests"
    assert alarms[0]["alarm"]["error"] == ""
    assert not alarms[0]["before"]["frozen"], "what was in force until then"
    assert "between  late-requests" in words
    assert "fast guard looks at lc: jsonl" in process.err
    assert knobs(folders) == before


QUOTAS = {"cpu.cfs_quota_us": "-1", "cpu.max": "max"}


@pytest.mark.slow
def test_starved_be_is_told_to_whoever_moves_it(groups, tmp_path):
    """A blind controller freezes BE: the operator's command learns why, and the tick log has the event."""
    parent, folders = groups
    script = tmp_path / "move-be"
    script.write_text(f'#!/bin/sh\necho "$RLCTL_SHARE $RLCTL_REASON" >> {tmp_path}/moved\n')
    script.chmod(0o755)
    config, before = written(parent, tmp_path), knobs(folders)
    starved = f"starved: {{after_seconds: 1, again_seconds: 1, command: [{script}]}}"
    config.write_text(config.read_text().replace("policy:", f"  {starved}\npolicy:"))
    ticks, moved = tmp_path / "log" / "ticks.jsonl", tmp_path / "moved"
    with served("--config", config) as process:
        until(lambda: moved.exists() and len(moved.read_text().splitlines()) >= 2, process)
    assert set(moved.read_text().splitlines()) == {"0.0000 latency-missing"}
    told = "BE had 0.0% of its CPUs in 1 s, mostly for: latency-missing"
    assert told in process.err
    assert [event for one in shown(ticks) for event in one["events"] if "be-starved" in event] == [
        f"be-starved: {told}"
    ]
    assert knobs(folders) == before


def shown(path):
    """The ticks so far."""
    return read_ticks(path) if path.exists() else ()


def notes(path):
    """What the policy said in the ticks in which it knew something."""
    return (tick["note"] for tick in shown(path) if not tick["note"].startswith("nothing"))


def overruns(path):
    """Ticks in which the guard against an overrun objected."""
    return (tick for tick in shown(path) if any(bound["reason"] == "be-overrun" for bound in tick["bounds"]))


@pytest.mark.slow
@pytest.mark.parametrize("weight", ["minimum", "idle", "leave"])
def test_be_has_configured_weight_while_served(groups, tmp_path, weight):
    parent, folders = groups
    be = Group.open(Layout.detect(), f"{parent}/be", Knobs(None)).cpu
    if weight == "idle" and be.idle() is None:
        pytest.skip("this kernel has no cpu.idle")
    be.set_weight(700)
    before, config = knobs(folders), written(parent, tmp_path)
    dry = start("--config", config, "--dry-run", "--duration", "0.2")
    _, err = dry.communicate(timeout=PATIENCE_SECONDS)
    assert "dry run: would give BE minimum weight" in err
    assert "dry run: would write '2' to" in err or "dry run: would write '1' to" in err, err
    assert knobs(folders) == before
    config.write_text(config.read_text().replace("be:\n", f"be:\n  weight: {weight}\n"))
    with served("--config", config) as process:
        until(lambda: has_ticks(tmp_path / "log" / "ticks.jsonl", 1), process)
        idle, number = be.idle(), be.weight()
    assert bool(idle) == (weight == "idle")
    assert number == 700 if weight == "leave" else idle or number <= 2
    assert ("was 700" in process.err) == (weight != "leave")
    assert knobs(folders) == before


def test_second_controller_is_refused_and_names_first(groups, tmp_path):
    parent, _ = groups
    (tmp_path / "other").mkdir()
    with served("--config", written(parent, tmp_path)) as first:
        until(lambda: has_ticks(tmp_path / "log" / "ticks.jsonl", 1), first)
        second = start("--config", written(parent, tmp_path / "other"), "--duration", "1")
        _, err = second.communicate(timeout=PATIENCE_SECONDS)
        assert second.returncode == 75, err
        assert f"/be is controlled by a running rlctl (pid {first.pid}): stop it first" in err
        assert first.poll() is None


def test_stop_does_not_wait_for_next_tick(groups, tmp_path):
    parent, folders = groups
    before, config = knobs(folders), written(parent, tmp_path)
    config.write_text(config.read_text().replace("tick_seconds: 0.2", "tick_seconds: 60"))
    with served("--config", config) as process:
        until(lambda: knobs(folders) != before, process)
    assert "leaving after 0 ticks" in process.err
    assert knobs(folders) == before


def test_after_a_crash_restore_puts_everything_back(groups, tmp_path):
    parent, folders = groups
    before, ticks = knobs(folders), tmp_path / "log" / "ticks.jsonl"
    process = start("--config", written(parent, tmp_path, "watchdog: {enabled: false}"))
    until(lambda: has_ticks(ticks, 1), process)
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)
    assert knobs(folders) != before
    code, text = said("restore", state=tmp_path / "state")
    assert code == 0, text
    assert knobs(folders) == before


def test_unseen_crash_watchdog_puts_everything_back(groups, tmp_path):
    parent, folders = groups
    before, ticks = knobs(folders), tmp_path / "log" / "ticks.jsonl"
    process = start("--config", written(parent, tmp_path, "watchdog: {restore_after_seconds: 1}"))
    until(lambda: has_ticks(ticks, 1), process)
    assert knobs(folders) != before
    process.kill()
    _, err = process.communicate(timeout=PATIENCE_SECONDS)  # the watchdog has the same stderr, and ends when it is done
    assert knobs(folders) == before, err
    assert not list((tmp_path / "state").glob("journal.jsonl"))


@pytest.mark.slow
def test_after_crash_start_elsewhere_waits_for_originals(groups, tmp_path):
    parent, folders = groups
    before, state, other = knobs(folders), tmp_path / "state", tmp_path / "other"
    other.mkdir()
    first = start("--config", written(parent, tmp_path, "watchdog: {restore_after_seconds: 600}"))
    until(lambda: has_ticks(tmp_path / "log" / "ticks.jsonl", 1), first)
    first.kill()
    first.wait()
    try:
        refused = start("--config", written(parent, other), "--duration", "1")
        _, err = refused.communicate(timeout=PATIENCE_SECONDS)
        assert refused.returncode == 75, err
        assert f"{state} has the originals of " in err
        assert f"`rlctl restore --state {state}`" in err
        assert ordered_frozen(knobs(folders)), "the crashed one's watchdog holds BE all the same"
    finally:
        code, text = said("restore", state=state)
        assert code == 0, text
        first.communicate(timeout=PATIENCE_SECONDS)  # its watchdog has the same stderr, and ends now
    assert knobs(folders) == before
    second = start("--config", written(parent, other), "--duration", "1")
    _, err = second.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == 0, err
    assert knobs(folders) == before, err


@pytest.mark.slow
def test_failed_start_after_crash_leaves_be_watched(groups, tmp_path):
    """Its own watchdog once put the originals back, and the crashed one's had made way for it."""
    parent, folders = groups
    before, state, watchdog = knobs(folders), tmp_path / "state", "watchdog: {restore_after_seconds: 600}"
    first = start("--config", written(parent, tmp_path, watchdog))
    until(lambda: has_ticks(tmp_path / "log" / "ticks.jsonl", 1), first)
    first.kill()
    first.wait()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics = f'metrics: {{listen: "127.0.0.1:{taken.getsockname()[1]}"}}'
        second = start("--config", written(parent, tmp_path, f"{watchdog}\n{metrics}"))
        try:
            assert second.wait(PATIENCE_SECONDS) == 75
            with pytest.raises(subprocess.TimeoutExpired):  # its watchdog has the same stderr, and does not end
                second.communicate(timeout=3.0)
            assert ordered_frozen(knobs(folders))
        finally:
            second.kill()
            code, text = said("restore", state=state)
            assert code == 0, text
            first.communicate(timeout=PATIENCE_SECONDS)
            _, err = second.communicate(timeout=PATIENCE_SECONDS)
    assert "BE stays at the safe allocation: the watchdog waits for another start" in err
    assert knobs(folders) == before, err


def test_hangup_exchanges_who_decides_and_mistake_changes_nothing(groups, tmp_path):
    parent, folders = groups
    before, ticks = knobs(folders), tmp_path / "log" / "ticks.jsonl"
    config = written(parent, tmp_path)
    right = config.read_text()
    with served("--config", config) as process:
        until(lambda: has_ticks(ticks, 2), process)
        for text, wanted in (
            (right.replace("static", "statik"), "static"),
            (right.replace("static", "frozen"), "frozen"),
        ):
            config.write_text(text)
            process.send_signal(signal.SIGHUP)
            so_far = len(list(read_ticks(ticks)))
            until(lambda so_far=so_far: has_ticks(ticks, so_far + 3), process)
            assert list(read_ticks(ticks))[-1]["policy"] == wanted
    assert "not reloaded, all stays as it was" in process.err
    assert "did you mean 'static'" in process.err
    assert "reloaded: policy frozen" in process.err
    assert knobs(folders) == before


def test_operators_word_outlives_a_restart(groups, tmp_path):
    parent, folders = groups
    before, ticks, state = knobs(folders), tmp_path / "log" / "ticks.jsonl", tmp_path / "state"
    config = written(parent, tmp_path)
    assert said("pause", state=state)[0] == 75
    with served("--config", config) as process:
        until(lambda: has_ticks(ticks, 2), process)
        code, text = said("pause", "--why", "backup", "--for", "1h", state=state)
        assert (code, "paused by root" in text, ": backup;" in text) == (0, True, True), text
        assert ordered_frozen(knobs(folders)), "whether or not a tick has come meanwhile"
        until(lambda: any(bound["reason"] == "operator" for bound in list(read_ticks(ticks))[-1]["bounds"]))
    assert knobs(folders) == before
    assert not (state / "control.sock").exists()
    so_far = len(list(read_ticks(ticks)))
    with served("--config", config) as process:
        until(lambda: has_ticks(ticks, so_far + 2), process)
        code, text = said("pause", "--show", state=state)
        assert "backup" in text, text
        assert said("resume", state=state)[0] == 0
        assert said("limit", "0.5", state=state)[0] == 0
        assert "limited to 0.5 CPU" in said("release", state=state)[1]
    assert "`rlctl resume` ends it" in process.err
    assert knobs(folders) == before


@pytest.mark.slow
def test_schedule_and_spent_budget_outlive_restart(groups, tmp_path):
    parent, folders = groups
    before, ticks, requests = knobs(folders), tmp_path / "log" / "ticks.jsonl", tmp_path / "requests.jsonl"
    schedule = 'schedule: [{name: always, begins: "00:00", ends: "24:00", be_cpus: 0.3}]'
    config = written(parent, tmp_path, f"{schedule}\ninner_guard: {{enabled: false}}")
    text = config.read_text().replace("rps: 100", "rps: 5000, error_budget_percent: 0.001")
    config.write_text(text)

    def last():
        return ([*shown(ticks)] or [{"policy": "", "bounds": [], "applied": {"frozen": True}}])[-1]

    def reasons():
        return {bound["reason"] for bound in last()["bounds"]}

    def decides(name):
        return last()["policy"] == name

    def spent():
        with requests.open("a") as log:
            log.write('{"latency_seconds": 0.5}\n' * 300)
        return "error-budget" in reasons()

    def reloaded_with(name):
        config.write_text(text.replace("name: static", f"name: {name}"))
        process.send_signal(signal.SIGHUP)
        until(lambda: decides(name), process)

    # The service ends first, or the busy one is frozen for the rest of the cool-down, and does not die.
    with requests_in(requests), a_busy_one(folders), served("--config", config) as process:
        until(lambda: not last()["applied"]["frozen"], process)
        assert "schedule" in reasons(), "in force now"
        assert all(tick["applied"]["quota_cpus"] <= 0.3 for tick in shown(ticks))
        reloaded_with("greedy-shield")
        until(spent, process)
    first = process.err
    config.write_text(text.replace("name: static", "name: weights"))
    ticks.unlink()
    with served("--config", config) as process, requests_in(requests):
        until(lambda: has_ticks(ticks, 3), process)
        assert reasons() >= {"schedule", "error-budget"}, "a restart forgets neither"
    assert "schedule: its times are in " in first
    assert "error budget of lc" in first
    assert "BE gets its minimum" in first
    assert knobs(folders) == before


def test_a_dry_run_writes_neither_knob_nor_file(groups, tmp_path):
    parent, folders = groups
    before, config = knobs(folders), written(parent, tmp_path)
    process = start("--config", config, "--dry-run", "--duration", "0.3")
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert "dry run: would set BE" in err
    assert "# default" not in err, "what the file leaves out is told with -v"
    assert knobs(folders) == before
    assert list(tmp_path.iterdir()) == [config]


def test_absent_group_is_75_in_one_line(tmp_path):
    needs(CgroupController.CPUACCT, cpus=2)
    process = start("--config", written("rlctl-test-absent", tmp_path))
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    last = err.splitlines()[-1]
    assert process.returncode == 75, err
    assert last.startswith("rlctl: error: ")
    assert "rlctl-test-absent" in last


def test_manager_and_guard_of_a_user_serve(groups, tmp_path):
    """The guard's bound is in force on the host, and a manager that fails is left to the fallback."""
    parent, folders = groups
    before, code = knobs(folders), tmp_path / "own.py"
    code.write_text(
        "from rlctl.agents.managers.manager import Manager\n"
        "from rlctl.envs.allocation import Allocation\n"
        "from rlctl.safety.verdict import Bound, Reason\n\n\n"
        "class Failing(Manager):\n"
        "    ticks = 0\n"
        "    def begin(self): return self.limits.minimum\n"
        "    def decide(self, telemetry):\n"
        "        self.ticks += 1\n"
        "        return (self.limits.full, 'all') if self.ticks < 4 else 1 / 0\n\n\n"
        "class Cap:\n"
        "    name = 'cap'\n"
        "    def start(self): return None\n"
        "    def advance(self, memory, telemetry): return None\n"
        "    def bound(self, memory, telemetry, current, limits):\n"
        "        return Bound('cap', Reason.OWN, Allocation(0.05, 1), 'no more than a twentieth')\n"
    )
    config, ticks = written(parent, tmp_path, f"shield: measured+{code}:Cap"), tmp_path / "log" / "ticks.jsonl"
    config.write_text(config.read_text().replace("name: static", f"name: '{code}:Failing'"))
    with requests_in(tmp_path / "requests.jsonl"), served("--config", config) as process:
        until(lambda: any("ZeroDivisionError" in tick.get("fallback", "") for tick in shown(ticks)), process)
    assert "own.py:11: Failing.act raised ZeroDivisionError" in process.err
    assert all(tick["applied"]["quota_cpus"] <= 0.05 for tick in shown(ticks))
    assert any(bound["guard"] == "cap" for tick in shown(ticks) for bound in tick["bounds"])
    assert knobs(folders) == before
