"""`rlctl serve` over a plant without a host: it says what it does, stops when told, and always restores."""

import errno
import json
import logging
import os
import socket

import pytest

from rlctl.agents.served.fallback import FallbackPolicy, UnavailablePolicy
from rlctl.config.serve import LogSection
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupError, ConfigError, HostError, RlctlError
from rlctl.envs.workload import Weight
from rlctl.log.reader import read_log
from rlctl.log.replay import replay
from rlctl.safety.profile import load_profile
from rlctl.serve.dry_run import DryRun
from rlctl.serve.policy_setup import Configuration, PolicySetup
from rlctl.serve.service import Service, _tick_log
from tests.doubles.clock import Countdown
from tests.doubles.host import FakeHost, run_service
from tests.doubles.tick_logs import read_ticks

LIMITS = Limits(cpus=2)
PROFILE = load_profile("responsive")


def be(weight):
    """The section of BE with this CPU weight."""
    return {"workloads": [{"kind": "cgroup", "path": "/batch"}], "weight": weight}


@pytest.fixture(autouse=True)
def shown(caplog):
    caplog.set_level(logging.INFO, logger="rlctl")
    return caplog


@pytest.fixture
def run(tmp_path):
    """Runs the service on a host; its tick log is in tmp_path."""

    def run(host, policy, stop, **options):
        return run_service(host, PolicySetup(policy, PROFILE), stop, tmp_path, **options)

    return run


def test_every_tick_is_logged(always, tmp_path, run):
    plant = FakeHost(LIMITS, loads=(0.1,))
    totals = run(plant, always(lambda o: Allocation(0.5, 1)), Countdown(20))
    assert totals.ticks == 20
    assert len(list(read_ticks(tmp_path / "ticks.jsonl"))) == 20


@pytest.mark.parametrize(("profile", "frozen"), [("responsive", False), ("heracles", True)])
def test_reload_takes_nothing_while_shield_stays(always, tmp_path, profile, frozen, run):
    looks = iter(range(1000))

    def reloaded():
        if next(looks) != 60:
            return None
        second = always(lambda _: LIMITS.full)
        second.name = "second"
        return PolicySetup(second, load_profile(profile))

    first = always(lambda _: LIMITS.full)
    first.name = "first"
    run(FakeHost(LIMITS, loads=(0.1,)), first, Countdown(100), reloaded=reloaded)
    told = list(read_ticks(tmp_path / "ticks.jsonl"))
    before, after = [tick for tick in told if tick["policy"] == "first"], [t for t in told if t["policy"] == "second"]
    assert not before[-1]["applied"]["frozen"]
    assert after[0]["before"]["frozen"] == frozen
    assert frozen or after[0]["before"] == before[-1]["applied"]
    again = replay(read_log([tmp_path / "ticks.jsonl"], pytest.fail), None)
    assert (again.ticks, again.unknown, again.differences) == (100, 0, []), "the header says what the guards remember"


def test_ceiling_and_author_reach_the_reins(always, tmp_path):
    """A ceiling of half the CPUs left BE all of them on the link; a refused bundle's stand-in held no link."""
    host = FakeHost(LIMITS, loads=(0.1,))
    second = always(lambda _: LIMITS.full)
    second.moves_reins = True
    chain = FallbackPolicy(UnavailablePolicy("net", "damaged"), second, host.tick_seconds)
    setup = PolicySetup(chain, PROFILE.model_copy(update={"ceiling_ratio": 0.5}))
    run_service(host, setup, Countdown(5), tmp_path)
    assert (host.reins.moves(), host.reins.most_cpus) == (True, Allocation(1.0, 2))


def test_reload_to_more_weight_begins_safe(always, tmp_path, run):
    """The guards saw a BE of the idle class, which takes nothing from an LC: what they allow it is for nobody else."""
    looks = iter(range(1000))
    idle, other = always(lambda _: LIMITS.full), always(lambda _: LIMITS.full)
    idle.weight, other.name = Weight.IDLE, "other"
    run(
        FakeHost(LIMITS, loads=(0.1,)), idle, Countdown(100),
        reloaded=lambda: PolicySetup(other, PROFILE) if next(looks) == 60 else None,
    )  # fmt: skip
    assert next(tick for tick in read_ticks(tmp_path / "ticks.jsonl") if tick["policy"] == "other")["before"]["frozen"]


@pytest.mark.parametrize("weight", ["minimum", "idle", "leave"])
def test_reload_to_present_weight_takes_nothing(always, tmp_path, weight, run):
    """From `prm-hybrid-tuned` to `feedforward`, say: BE has the least weight under both."""
    looks = iter(range(1000))
    light, other = always(lambda _: LIMITS.full), always(lambda _: LIMITS.full)
    light.weight, other.name = Weight.MINIMUM, "other"
    second = PolicySetup(other, PROFILE)
    run(
        FakeHost(LIMITS, loads=(0.1,)), light, Countdown(100),
        reloaded=lambda: second if next(looks) == 60 else None, be=be(weight),
    )  # fmt: skip
    assert not next(tick for tick in read_ticks(tmp_path / "ticks.jsonl") if tick["policy"] == "other")["before"][
        "frozen"
    ]


def test_a_reload_says_what_the_new_policy_lacks(always, tmp_path, caplog, run):
    first, second, looks = always(lambda _: LIMITS.full), always(lambda _: LIMITS.full), iter(range(1000))
    second.needs = ("lc_cpus",)
    run(
        FakeHost(LIMITS, loads=(0.1,), absent={"lc_cpus": "no group"}), first, Countdown(10),
        reloaded=lambda: PolicySetup(second, PROFILE) if next(looks) == 5 else None,
    )  # fmt: skip
    assert caplog.text.count("policy always needs lc_cpus, which is missing: no group") == 1


class Host(FakeHost):
    """A host whose `log` has what was done to it and to its watchdog."""

    def __init__(self, log, *, inherited=False, **failing):
        super().__init__(LIMITS, loads=(0.1,))
        self.log, self.inherited, self.failing = log, inherited, failing

    def fail(self, name):
        if name in self.failing:
            raise self.failing[name]

    def wait(self):
        self.fail("wait")
        return super().wait()

    def set_weight(self, weight):
        self.fail("set_weight")
        super().set_weight(weight)

    def rehearse(self):
        self.fail("rehearse")
        return super().rehearse()

    def emergency_plan(self):
        return None

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

    def why_lost(self):
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
    monkeypatch.setattr("rlctl.serve.service.Lease", lambda *_: Watchdog(log, lost))
    path = serve_yaml(
        "policy: {name: frozen}",
        f"policy: {{name: frozen}}\nlog: {{directory: {tmp_path / 'log'}}}\nstate_directory: {tmp_path}\n",
    )
    configuration = Configuration(path)
    configuration.deciders = PolicySetup(policy, PROFILE)
    try:
        with Service(configuration, Countdown(ticks), open_host=lambda *_, **__: Host(log, **of_host)) as service:
            service.run()
    except RlctlError as error:
        return log, error
    return log, None


@pytest.mark.parametrize("inherited", [False, True])
def test_at_its_end_host_is_put_back(always, serve_yaml, monkeypatch, tmp_path, inherited):
    assert served(always, serve_yaml, monkeypatch, tmp_path, inherited=inherited) == (GIVEN_BACK, None)
    assert len(list(read_ticks(tmp_path / "log/ticks.jsonl"))) == 5


def test_when_loop_dies_watchdog_keeps_be_safe(always, serve_yaml, monkeypatch, tmp_path):
    log, error = served(always, serve_yaml, monkeypatch, tmp_path, ticks=50, wait=HostError("the host is gone"))
    assert log == []
    assert isinstance(error, HostError)


def test_loop_death_without_lease_puts_host_back(always, serve_yaml, monkeypatch, tmp_path):
    log, error = served(
        always, serve_yaml, monkeypatch, tmp_path, ticks=50, lost="the journal is gone", wait=HostError("gone")
    )
    assert log == GIVEN_BACK
    assert isinstance(error, HostError)


@pytest.mark.parametrize("failing", ["set_weight", "rehearse"])
def test_host_is_put_back_when_it_cannot_begin(always, serve_yaml, monkeypatch, tmp_path, failing):
    busy = CgroupError("cpu.shares: busy")
    found = served(always, serve_yaml, monkeypatch, tmp_path, weight=Weight.MINIMUM, **{failing: busy})
    assert found == (GIVEN_BACK, busy)


def test_failed_begin_leaves_killed_ones_be_to_watchdog(always, serve_yaml, monkeypatch, tmp_path):
    busy = CgroupError("cpu.shares: busy")
    assert served(always, serve_yaml, monkeypatch, tmp_path, inherited=True, rehearse=busy) == ([], busy)


def test_host_is_put_back_without_a_tick_log(always, serve_yaml, monkeypatch, tmp_path):
    (tmp_path / "log").write_text("a file stands in its place")
    log, error = served(always, serve_yaml, monkeypatch, tmp_path)
    assert log == GIVEN_BACK
    assert str(error).startswith("log.directory: ")


def test_full_disk_at_start_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rlctl.serve.service.TickLog", lambda *_: fail(OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(HostError, match=rf"^log.directory: {tmp_path}: No space left on device$"):
        _tick_log(LogSection(directory=tmp_path))


def fail(error):
    raise error


def test_dry_run_says_what_it_would_write(always, shown, run):
    plant = FakeHost(LIMITS, loads=(0.1,))
    plant.apply = lambda *_: pytest.fail("written")
    policy = always(lambda o: LIMITS.full)
    policy.weight = Weight.MINIMUM
    run(plant, policy, Countdown(5), dry_run=True)
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
def test_be_has_the_configured_weight_under_every_policy(always, shown, wanted, own, weight, run):
    plant, policy = FakeHost(LIMITS, loads=(0.1,)), always(lambda o: o.current)
    policy.weight = own
    run(plant, policy, Countdown(2), be=be(wanted))
    assert plant.weight is weight
    assert ("reckons with minimum CPU weight" in shown.text) == (wanted == "leave")


def test_without_idle_class_be_gets_the_minimum(always, shown, run):
    plant, given = FakeHost(LIMITS, loads=(0.1,)), []

    def set_weight(weight):
        if weight is Weight.IDLE:
            raise CgroupError("/be has no cpu.idle, which came with Linux 5.15")
        given.append(weight)

    plant.set_weight = set_weight
    run(plant, always(lambda o: o.current), Countdown(2), be=be("idle"))
    assert given == [Weight.MINIMUM]
    assert "has no cpu.idle, which came with Linux 5.15: BE gets the minimum CPU weight instead" in shown.text


@pytest.mark.parametrize("section", ["control: {group: no-such-group}", f"state_directory: /{'x' * 107}"])
def test_dry_run_ends_where_no_socket_can_be(serve_yaml, section):
    configuration = Configuration(serve_yaml(new=f"{section}\n"))
    service = Service(configuration, Countdown(5), dry_run=True, open_host=lambda *_, **__: Host([]))
    with pytest.raises(ConfigError, match=r"control\.group: there is no group|too long for a socket's name") as raised:
        service.__enter__()
    assert raised.value.exit_code == 78


def test_dry_run_goes_on_as_if_written():
    plant = DryRun(FakeHost(LIMITS))
    assert plant.apply(Allocation(0.001, 9)) == Allocation(0.01, 2)
    assert plant.current == Allocation(0.01, 2)


def test_change_has_a_line_tick_has_none(always, shown, run):
    run(FakeHost(LIMITS, loads=(0.1,)), always(lambda o: LIMITS.safe), Countdown(50))
    lines = [record.getMessage() for record in shown.records]
    assert len(lines) < 8, lines
    assert any(line.startswith("leaving after 50 ticks") for line in lines)


def test_stepwise_growth_for_one_reason_is_one_line(always, shown, run):
    run(FakeHost(LIMITS, loads=(0.1,)), always(lambda o: LIMITS.full), Countdown(30))
    changes = [record for record in shown.records if record.getMessage().startswith("BE ")]
    assert 1 <= len(changes) <= 3, changes


def test_a_change_names_the_guard_that_made_it(always, shown, run):
    plant = FakeHost(LIMITS, loads=(0.2,) * 40 + (1.2,) * 3)
    run(plant, always(lambda o: LIMITS.full), Countdown(43))
    assert "load-high" in shown.text


def test_json_lines_are_whole_and_end_with_totals(always, capsys, run):
    run(FakeHost(LIMITS, loads=(0.1,)), always(lambda o: LIMITS.full), Countdown(130), as_json=True)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"change", "summary", "end"} <= {event["event"] for event in events}
    assert events[-1]["ticks"] == 130
    summary = next(event for event in events if event["event"] == "summary")
    assert summary["ticks"] >= 60
    assert summary["over_target"] == 0
    change = next(event for event in events if event["event"] == "change")
    assert {"ts", "tick", "before", "applied", "policy", "guards"} <= change.keys()


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_ready_then_the_watchdog_then_stopping(always, monkeypatch, tmp_path, abstract, run):
    address = f"@rlctl-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if abstract else address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        run(FakeHost(LIMITS), always(lambda o: o.current), Countdown(2))
        manager.setblocking(False)
        heard = [manager.recv(4096).decode() for _ in range(3)]
    assert heard[0].startswith("READY=1\nWATCHDOG=1\n")
    assert heard[1].startswith("WATCHDOG=1\n")
    assert heard[2] == "STOPPING=1"


@pytest.mark.parametrize("address", ["", "nonsense", "/nowhere/socket"])
def test_without_a_service_manager_nothing_happens(address):
    from rlctl.serve.notify import notify

    assert notify("READY=1", {"NOTIFY_SOCKET": address}) is False


def test_range_is_told_in_words(always, shown, run):
    run(FakeHost(LIMITS), always(lambda o: o.current), Countdown(1))
    assert "BE may get 2 CPUs, a quota of 0.01 CPU and more" in shown.text
    assert "Limits(" not in shown.text
