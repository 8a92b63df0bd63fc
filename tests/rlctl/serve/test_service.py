"""`rlctl serve` over a plant without a host: it says what it does, stops when told, and always restores."""

import errno
import json
import logging
import os
import socket

import pytest

from rlctl.config.serve import LogSection
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupError, ConfigError, HostError, RlctlError
from rlctl.envs.workload import Weight
from rlctl.log.reader import read_log
from rlctl.log.record import TickLog
from rlctl.log.replay import replay
from rlctl.safety.profile import load_profile
from rlctl.serve.dry_run import DryRun
from rlctl.serve.policy_setup import Configuration, PolicySetup
from rlctl.serve.service import Around, _tick_log, control, dry_run, serve
from tests.doubles.clock import Countdown
from tests.doubles.plant import FakePlant
from tests.doubles.tick_logs import read_ticks

LIMITS = Limits(cpus=2)
PROFILE = load_profile("responsive")


@pytest.fixture(autouse=True)
def shown(caplog):
    caplog.set_level(logging.INFO, logger="rlctl")
    return caplog


def run(plant, policy, tick_log, stop, **options):
    return control(plant, PolicySetup(policy, PROFILE), stop, Around(tick_log=tick_log), **options)


def test_every_tick_is_logged(always, tmp_path):
    plant = FakePlant(LIMITS, loads=(0.1,))
    log = TickLog(tmp_path / "ticks.jsonl")
    totals = run(plant, always(lambda o: Allocation(0.5, 1)), log, Countdown(20))
    assert totals.ticks == 20
    log.close()
    assert len(list(read_ticks(log.path))) == 20


@pytest.mark.parametrize(("profile", "frozen"), [("responsive", False), ("heracles", True)])
def test_a_reload_takes_nothing_from_be_while_the_shield_stays_the_same(always, tmp_path, profile, frozen):
    log, looks = TickLog(tmp_path / "ticks.jsonl"), iter(range(1000))

    def reloaded():
        if next(looks) != 60:
            return None
        second = always(lambda _: LIMITS.full)
        second.name = "second"
        return PolicySetup(second, load_profile(profile))

    first = always(lambda _: LIMITS.full)
    first.name = "first"
    run(FakePlant(LIMITS, loads=(0.1,)), first, log, Countdown(100), reloaded=reloaded)
    log.close()
    told = list(read_ticks(log.path))
    before, after = [tick for tick in told if tick["policy"] == "first"], [t for t in told if t["policy"] == "second"]
    assert not before[-1]["applied"]["frozen"]
    assert after[0]["before"]["frozen"] == frozen
    assert frozen or after[0]["before"] == before[-1]["applied"]
    again = replay(read_log([log.path], pytest.fail), None)
    assert (again.ticks, again.unknown, again.differences) == (100, 0, []), "the header says what the guards remember"


def test_a_reload_that_gives_be_more_weight_begins_at_the_safe_allocation(always, tmp_path):
    """The guards saw a BE of the idle class, which takes nothing from an LC: what they allow it is for nobody else."""
    log, looks = TickLog(tmp_path / "ticks.jsonl"), iter(range(1000))
    idle, other = always(lambda _: LIMITS.full), always(lambda _: LIMITS.full)
    idle.weight, other.name = Weight.IDLE, "other"
    run(
        FakePlant(LIMITS, loads=(0.1,)), idle, log, Countdown(100),
        reloaded=lambda: PolicySetup(other, PROFILE) if next(looks) == 60 else None,
    )  # fmt: skip
    log.close()
    assert next(tick for tick in read_ticks(log.path) if tick["policy"] == "other")["before"]["frozen"]


@pytest.mark.parametrize("weight", ["minimum", "idle", "leave"])
def test_a_reload_to_a_policy_that_wishes_for_a_weight_which_be_has_takes_nothing(always, tmp_path, weight):
    """From `prm-hybrid-tuned` to `feedforward`, say: BE has the least weight under both."""
    log, looks = TickLog(tmp_path / "ticks.jsonl"), iter(range(1000))
    light, other = always(lambda _: LIMITS.full), always(lambda _: LIMITS.full)
    light.weight, other.name = Weight.MINIMUM, "other"
    around, first = Around(tick_log=log, weight=weight), PolicySetup(light, PROFILE)
    second = PolicySetup(other, PROFILE)
    control(
        FakePlant(LIMITS, loads=(0.1,)), first, Countdown(100), around,
        reloaded=lambda: second if next(looks) == 60 else None,
    )  # fmt: skip
    log.close()
    assert not next(tick for tick in read_ticks(log.path) if tick["policy"] == "other")["before"]["frozen"]


def test_a_reload_says_what_the_new_policy_lacks(always, tmp_path, caplog):
    first, second, looks = always(lambda _: LIMITS.full), always(lambda _: LIMITS.full), iter(range(1000))
    second.needs = ("lc_cpus",)
    around = Around(absent={"lc_cpus": "no group"})
    control(
        FakePlant(LIMITS, loads=(0.1,)), PolicySetup(first, PROFILE), Countdown(10), around,
        reloaded=lambda: PolicySetup(second, PROFILE) if next(looks) == 5 else None,
    )  # fmt: skip
    assert caplog.text.count("policy always needs lc_cpus, which is missing: no group") == 1


class Host(FakePlant):
    """A live host, as far as it is opened and closed; `log` has what was done to it and to its watchdog."""

    def __init__(self, log, *, inherited=False, **failing):
        super().__init__(LIMITS, loads=(0.1,))
        self.watch, self.inherited, self.applied, self.lc_cpus_known = None, inherited, False, True
        self.actuator = self
        self.log, self.absent, self.shares, self.learned, self.failing = log, {}, {}, (), failing

    def wait(self):
        if "wait" in self.failing:
            raise self.failing["wait"]
        return super().wait()

    def set_weight(self, weight):
        if "set_weight" in self.failing:
            raise self.failing["set_weight"]
        super().set_weight(weight)

    def apply(self, allocation):
        self.applied = True
        return super().apply(allocation)

    def rehearse(self):
        if "rehearse" in self.failing:
            raise self.failing["rehearse"]
        return 0

    def emergency_plan(self):
        return None

    def events(self):
        return ()

    def peopled(self):
        return True

    def close(self):
        self.log.append("originals put back")


class Watchdog:
    """A lease whose watchdog lives."""

    pid, restarts = 1, 0

    def __init__(self, log, lost=""):
        self.log, self._lost = log, lost

    def leave(self):
        self.log.append("watchdog out of the way")

    def close(self):
        self.log.append("watchdog released")

    def lost(self):
        return self._lost

    def check(self):
        return ""

    def renew(self, *, safe=False):
        pass


GIVEN_BACK = ["watchdog out of the way", "originals put back", "watchdog released"]


def served(always, serve_yaml, monkeypatch, tmp_path, *, ticks=5, lost="", weight=Weight.EQUAL, **of_host):
    """What became of the host in a whole run of the service, and with which error it ended."""
    log, policy = [], always(lambda o: o.current)
    policy.weight = weight
    monkeypatch.setattr("rlctl.serve.service.build_live", lambda *_, **__: Host(log, **of_host))
    monkeypatch.setattr("rlctl.serve.service.Lease", lambda *_: Watchdog(log, lost))
    path = serve_yaml(
        "policy: {name: frozen}",
        f"policy: {{name: frozen}}\nlog: {{directory: {tmp_path / 'log'}}}\nstate_directory: {tmp_path}\n",
    )
    configuration = Configuration(path)
    configuration.deciders = PolicySetup(policy, PROFILE)
    try:
        serve(configuration, Countdown(ticks))
    except RlctlError as error:
        return log, error
    return log, None


@pytest.mark.parametrize("inherited", [False, True])
def test_at_its_end_the_host_is_put_back_and_the_watchdog_keeps_out_of_the_way(
    always, serve_yaml, monkeypatch, tmp_path, inherited
):
    assert served(always, serve_yaml, monkeypatch, tmp_path, inherited=inherited) == (GIVEN_BACK, None)
    assert len(list(read_ticks(tmp_path / "log/ticks.jsonl"))) == 5


def test_when_the_loop_dies_the_watchdog_keeps_be_safe(always, serve_yaml, monkeypatch, tmp_path):
    log, error = served(always, serve_yaml, monkeypatch, tmp_path, ticks=50, wait=HostError("the host is gone"))
    assert log == []
    assert isinstance(error, HostError)


def test_when_the_loop_dies_without_a_lease_the_host_is_put_back(always, serve_yaml, monkeypatch, tmp_path):
    log, error = served(
        always, serve_yaml, monkeypatch, tmp_path, ticks=50, lost="the journal is gone", wait=HostError("gone")
    )
    assert log == GIVEN_BACK
    assert isinstance(error, HostError)


@pytest.mark.parametrize("failing", ["set_weight", "rehearse"])
def test_the_host_is_put_back_when_it_cannot_even_begin(always, serve_yaml, monkeypatch, tmp_path, failing):
    busy = CgroupError("cpu.shares: busy")
    found = served(always, serve_yaml, monkeypatch, tmp_path, weight=Weight.MINIMUM, **{failing: busy})
    assert found == (GIVEN_BACK, busy)


def test_who_cannot_even_begin_leaves_the_be_of_a_controller_that_was_killed_to_the_watchdog(
    always, serve_yaml, monkeypatch, tmp_path
):
    busy = CgroupError("cpu.shares: busy")
    assert served(always, serve_yaml, monkeypatch, tmp_path, inherited=True, rehearse=busy) == ([], busy)


def test_the_host_is_put_back_when_there_can_be_no_tick_log(always, serve_yaml, monkeypatch, tmp_path):
    (tmp_path / "log").write_text("a file stands in its place")
    log, error = served(always, serve_yaml, monkeypatch, tmp_path)
    assert log == GIVEN_BACK
    assert str(error).startswith("log.directory: ")


def test_a_full_disk_at_the_start_is_tried_again_and_no_wrong_configuration(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rlctl.serve.service.TickLog", lambda *_: fail(OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(HostError, match=rf"^log.directory: {tmp_path}: No space left on device$"):
        _tick_log(LogSection(directory=tmp_path))


def fail(error):
    raise error


def test_a_dry_run_writes_nothing_and_says_what_it_would_write(always, shown):
    plant = FakePlant(LIMITS, loads=(0.1,))
    plant.apply = plant.set_weight = lambda *_: pytest.fail("written")
    policy = always(lambda o: LIMITS.full)
    policy.weight = Weight.MINIMUM
    run(DryRun(plant), policy, None, Countdown(5))
    assert "dry run: would set BE from" in shown.text
    assert "dry run: would give BE minimum weight" in shown.text


@pytest.mark.parametrize(
    ("wanted", "own", "weight"),
    [
        ("minimum", Weight.EQUAL, Weight.MINIMUM),
        ("minimum", Weight.IDLE, Weight.IDLE),
        ("idle", Weight.MINIMUM, Weight.IDLE),
        ("leave", Weight.MINIMUM, Weight.EQUAL),
    ],
)
def test_be_has_the_configured_weight_under_every_policy(always, shown, wanted, own, weight):
    plant, policy = FakePlant(LIMITS, loads=(0.1,)), always(lambda o: o.current)
    policy.weight = own
    control(plant, PolicySetup(policy, load_profile("responsive")), Countdown(2), Around(weight=wanted))
    assert plant.weight is weight
    assert f"be.weight: {wanted}" in shown.text
    assert ("reckons with minimum CPU weight" in shown.text) == (wanted == "leave")


def test_without_an_idle_class_be_gets_the_minimum_and_the_log_says_so(always, shown):
    plant, given = FakePlant(LIMITS, loads=(0.1,)), []

    def set_weight(weight):
        if weight is Weight.IDLE:
            raise CgroupError("/be has no cpu.idle, which came with Linux 5.15")
        given.append(weight)

    plant.set_weight = set_weight
    deciders = PolicySetup(always(lambda o: o.current), load_profile("responsive"))
    control(plant, deciders, Countdown(2), Around(weight="idle"))
    assert given == [Weight.MINIMUM]
    assert "has no cpu.idle, which came with Linux 5.15: BE gets the minimum CPU weight instead" in shown.text


@pytest.mark.parametrize("section", ["control: {group: no-such-group}", f"state_directory: /{'x' * 107}"])
def test_a_dry_run_ends_as_a_start_would_where_there_can_be_no_control_socket(serve_yaml, monkeypatch, section):
    monkeypatch.setattr("rlctl.serve.service.build_live", lambda *_, **__: Host([]))
    with pytest.raises(ConfigError, match=r"control\.group: there is no group|too long for a socket's name") as raised:
        dry_run(Configuration(serve_yaml(new=f"{section}\n")), Countdown(5))
    assert raised.value.exit_code == 78


def test_a_dry_run_goes_on_as_if_it_had_written():
    plant = DryRun(FakePlant(LIMITS))
    assert plant.apply(Allocation(0.001, 9)) == Allocation(0.01, 2)
    assert plant.current == Allocation(0.01, 2)


def test_there_is_a_line_for_a_change_and_none_for_a_tick(always, shown):
    run(FakePlant(LIMITS, loads=(0.1,)), always(lambda o: LIMITS.safe), None, Countdown(50))
    lines = [record.getMessage() for record in shown.records]
    assert len(lines) < 8, lines
    assert any(line.startswith("leaving after 50 ticks") for line in lines)


def test_step_by_step_growth_for_one_reason_is_one_line(always, shown):
    run(FakePlant(LIMITS, loads=(0.1,)), always(lambda o: LIMITS.full), None, Countdown(30))
    changes = [record for record in shown.records if record.getMessage().startswith("BE ")]
    assert 1 <= len(changes) <= 3, changes


def test_a_change_names_the_guard_that_made_it(always, shown):
    plant = FakePlant(LIMITS, loads=(0.2,) * 40 + (1.2,) * 3)
    run(plant, always(lambda o: LIMITS.full), None, Countdown(43))
    assert "load-high" in shown.text


def test_json_lines_are_whole_and_end_with_the_totals(always, capsys):
    run(FakePlant(LIMITS, loads=(0.1,)), always(lambda o: LIMITS.full), None, Countdown(130), as_json=True)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"change", "summary", "end"} <= {event["event"] for event in events}
    assert events[-1]["ticks"] == 130
    summary = next(event for event in events if event["event"] == "summary")
    assert summary["ticks"] >= 60
    assert summary["over_target"] == 0
    change = next(event for event in events if event["event"] == "change")
    assert {"ts", "tick", "before", "applied", "policy", "guards"} <= change.keys()


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_ready_then_the_watchdog_then_stopping(always, monkeypatch, tmp_path, abstract):
    address = f"@rlctl-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if abstract else address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        run(FakePlant(LIMITS), always(lambda o: o.current), None, Countdown(2))
        manager.setblocking(False)
        heard = [manager.recv(4096).decode() for _ in range(3)]
    assert heard[0].startswith("READY=1\nWATCHDOG=1\n")
    assert heard[1].startswith("WATCHDOG=1\n")
    assert heard[2] == "STOPPING=1"


@pytest.mark.parametrize("address", ["", "nonsense", "/nowhere/socket"])
def test_without_a_service_manager_nothing_happens(address):
    from rlctl.serve.notify import notify

    assert notify("READY=1", {"NOTIFY_SOCKET": address}) is False


def test_the_range_is_told_in_words_and_not_as_python(always, shown):
    run(FakePlant(LIMITS), always(lambda o: o.current), None, Countdown(1))
    assert "BE may get 2 CPUs, a quota of 0.01 CPU and more" in shown.text
    assert "Limits(" not in shown.text
