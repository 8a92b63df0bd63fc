"""BE that has had too little for too long: who is told of it, when, and when no more."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from rlctl.config.serve import StarvedSection
from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.errors import ConfigError
from rlctl.envs.host.events import KINDS
from rlctl.envs.telemetry import Missing, Telemetry, Value, Why
from rlctl.safety.verdict import Bound, Reason, Verdict
from rlctl.serve import starvation as module
from rlctl.serve.starvation import BUSY, StarvationDetector, check_command
from tests.waiting import until

CPUS = 2
FULL, HELD = Allocation(2.0, 2), Allocation(0.02, 2)
FROZEN = Allocation(0.02, 2, frozen=True)


def tick(applied, *reasons, events=(), **readings):
    """A tick with these bounds: a reason, which allows what is applied, or a reason with what it allows."""
    allowed = [one if isinstance(one, tuple) else (one, applied) for one in reasons]
    bounds = tuple(Bound("some", reason, most, "why") for reason, most in allowed)
    verdict = Verdict(applied, Allocation(UNLIMITED, 1 << 10), bounds)
    telemetry = Telemetry(1.0, 0.01, **readings)
    return SimpleNamespace(
        applied=applied,
        verdict=verdict,
        acting="",
        why_safe="",
        policy="ppo",
        events=events,
        be_vanished=any(line.startswith("be-vanished:") for line in events),
        telemetry=telemetry,
    )


def starving(has_processes=lambda: True, **section):
    return StarvationDetector(
        StarvedSection(**{"after_seconds": 10.0, "again_seconds": 5.0} | section), CPUS, 1.0, has_processes
    )


def fed(one, *ticks):
    """Events that these ticks brought."""
    told = []
    for each in ticks:
        one.write(each)
        told += one.events()
    return told


def test_be_starves_after_too_little_all_the_time():
    one = starving()
    assert fed(one, *[tick(HELD, Reason.LOAD_HIGH)] * 9) == []
    (told,) = fed(one, tick(HELD, Reason.LOAD_HIGH))
    assert told == "be-starved: BE had 1.0% of its CPUs in 10 s, mostly for: load-high"
    assert one.starved
    assert fed(one, *[tick(FROZEN)] * 50) == [], "told once"
    assert told.partition(":")[0] in KINDS


def test_whoever_held_most_often_held_it_back():
    one = starving()
    (told,) = fed(one, *[tick(HELD, Reason.LOAD_HIGH)] * 4, *[tick(HELD)] * 6)
    assert told.endswith("mostly for: policy ppo")


def test_copier_that_its_disk_holds_needs_no_cpu():
    little = {"rein": "disk", "be_cpus": Value(0.003), "be_pressure_ratio": Value(0.98)}
    assert fed(starving(), *[tick(FULL, **little)] * 20) == []
    (told,) = fed(starving(), *[tick(HELD, **little)] * 10)
    assert told.endswith("mostly for: policy ppo")


def test_reason_with_numbers_is_one_reason():
    late = [tick(HELD) for _ in range(6)]
    for seconds, one in enumerate(late):
        one.why_safe = f"no tick completed for {seconds}.4 s"
    (told,) = fed(starving(), *late, *[tick(HELD)] * 4)
    assert told.endswith("mostly for: no tick completed for ... s")


def test_moment_of_plenty_is_enough_not_to_starve():
    one = starving()
    assert fed(one, *[tick(HELD)] * 9, tick(FULL), *[tick(HELD)] * 9) == []
    assert not one.starved


def test_it_is_fed_again_at_twice_the_share():
    one = starving()
    fed(one, *[tick(FROZEN)] * 10)
    assert fed(one, tick(Allocation(0.15, 2))) == []
    (told,) = fed(one, tick(FULL))
    assert told.startswith("be-fed: BE had 10.8% of its CPUs")
    assert not one.starved


def test_where_no_be_is_left_nobody_starves():
    one = starving()
    fed(one, *[tick(HELD)] * 10)
    gone = tick(FROZEN, events=("be-vanished: no BE group is left",))
    assert fed(one, *[gone] * 30) == ["be-fed: no process of BE is there any more"]
    assert not one.starved
    assert fed(one, *[tick(HELD)] * 9) == [], "whoever comes begins anew"


@pytest.mark.parametrize("reason", [Reason.OPERATOR, Reason.SCHEDULE])
def test_whom_somebody_holds_on_purpose_does_not_starve(reason):
    one = starving()
    assert fed(one, *[tick(FROZEN, reason)] * 50) == []
    assert fed(one, *[tick(FROZEN, reason, Reason.LOAD_HIGH)] * 50) == [], "a pause leaves nothing to starve of"
    assert not one.starved


def keeping_to(reason):
    """A tick of a learned policy, which is told what it may have and exceeds nothing."""
    kept = tick(FROZEN, reason)
    kept.verdict = Verdict(FROZEN, FROZEN, kept.verdict.bounds)
    return kept


def test_policy_that_keeps_a_bound_held_nothing():
    assert fed(starving(), *[keeping_to(Reason.OPERATOR)] * 20) == []
    (told,) = fed(starving(), *[keeping_to(Reason.LOAD_HIGH)] * 10)
    assert told.endswith("mostly for: load-high")


def test_be_that_starves_below_most_is_fed_again():
    one = starving(below_ratio=0.8)
    fed(one, *[tick(HELD)] * 10)
    assert one.starved
    fed(one, *[tick(FULL)] * 10)
    assert not one.starved


def test_pause_takes_nothing_back_time_counts_on():
    one = starving()
    assert fed(one, *[tick(HELD, Reason.LOAD_HIGH)] * 9, *[tick(FROZEN, Reason.OPERATOR)] * 50) == []
    (told,) = fed(one, tick(HELD, Reason.LOAD_HIGH))
    assert told.endswith("mostly for: load-high")


def test_limit_that_does_not_hold_excuses_nobody():
    half = Allocation(1.0, 2)
    one = starving()
    (told,) = fed(one, *[tick(FROZEN, (Reason.OPERATOR, half), Reason.LOAD_HIGH)] * 10)
    assert told.endswith("mostly for: load-high")


def test_an_error_budget_that_is_spent_starves_be():
    (told,) = fed(starving(), *[tick(HELD, Reason.ERROR_BUDGET)] * 10)
    assert told.endswith("mostly for: error-budget")


def test_groups_without_a_process_starve_nobody():
    has_processes = [False]
    one = starving(lambda: has_processes[0])
    assert fed(one, *[tick(HELD)] * 50) == []
    has_processes[0] = True
    (told,) = fed(one, *[tick(HELD)] * 20)
    assert told.startswith("be-starved: ")


def test_groups_empty_between_jobs_take_nothing_back():
    has_processes = [True]
    one = starving(lambda: has_processes[0])
    assert fed(one, *[tick(HELD)] * 10) != []
    has_processes[0] = False
    assert fed(one, *[tick(HELD)] * 40) == []
    assert one.starved
    assert fed(one, *[tick(HELD)] * 40) == ["be-fed: no process of BE is there any more"]
    assert not one.starved, "nobody has come for a minute"


def test_nobody_looks_for_processes_while_be_has_enough():
    def never():
        raise AssertionError

    assert fed(starving(never), *[tick(FULL)] * 20) == []


def test_unlimited_be_that_gets_nothing_starves():
    """At the least weight beside an LC that fills the host, with a verdict that gives it all."""
    one = starving()
    (told,) = fed(one, *[tick(FULL, be_cpus=Value(0.02), be_pressure_ratio=Value(0.98))] * 10)
    assert told == f"be-starved: BE had 1.0% of its CPUs in 10 s, mostly for: {BUSY}"


@pytest.mark.parametrize("waited", [Value(0.1), Missing(Why.NOT_SUPPORTED), Value(float("nan"))])
def test_be_that_wants_no_more_does_not_starve(waited):
    assert fed(starving(), *[tick(FULL, be_cpus=Value(0.0), be_pressure_ratio=waited)] * 20) == []


def test_be_had_no_more_than_it_may_use():
    busy = {"be_cpus": Value(1.5), "be_pressure_ratio": Value(1.0)}
    (told,) = fed(starving(), *[tick(HELD, Reason.LOAD_HIGH, **busy)] * 10)
    assert "had 1.0%" in told
    assert told.endswith("load-high")


def test_without_a_reading_what_it_may_use_counts():
    assert fed(starving(), *[tick(FULL, be_cpus=Missing(Why.GONE), be_pressure_ratio=Value(1.0))] * 20) == []


@pytest.fixture
def noted(tmp_path):
    """A command that notes what it is told, and what it has noted."""
    file = tmp_path / "noted"
    words = "' '.join(os.environ['RLCTL_' + name] for name in ('SHARE', 'REASON', 'FED'))"
    script = f"import os; print({words}, file=open({str(file)!r}, 'a'))"
    return (sys.executable, "-c", script), lambda: file.read_text().splitlines() if file.exists() else []


def test_command_is_told_what_held_be(noted):
    command, said = noted
    one = starving(command=command)
    fed(one, *[tick(HELD, Reason.LOAD_HIGH)] * 10)
    until(lambda: said() == ["0.0100 load-high 0"])
    one.close()


def test_the_command_runs_again_while_be_starves(noted):
    command, said = noted
    one = starving(command=command)
    for times in (1, 2):
        fed(one, *[tick(HELD)] * (10 if times == 1 else 5))
        until(lambda times=times: len(said()) == times)
        until(lambda: fed(one) == [] and one._command.look() is None and one._command._process is None)
    one.close()


def test_command_is_told_when_be_is_fed(noted):
    """Once nobody was: a label that it had set stayed for ever."""
    command, said = noted
    one = starving(command=command)
    fed(one, *[tick(HELD)] * 10, *[tick(FULL)] * 10)
    until(lambda: (one._command.look(), len(said()))[1] == 2)
    assert said()[0].endswith(" 0")
    assert said()[1].endswith("  1"), "no reason holds it"
    one.close()


def test_feeding_is_told_until_the_command_ends_well(tmp_path, monkeypatch):
    """An API that did not answer once left the label for ever."""
    monkeypatch.setattr(module, "COMMAND_SECONDS", 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    file = tmp_path / "noted"
    one = starving(command=("sh", "-c", f"echo $RLCTL_FED >>{file}; [ $(wc -l <{file}) -ge 4 ]"))
    fed(one, *[tick(HELD)] * 10, *[tick(FULL)] * 10)
    until(lambda: (one._command.look(), one._command._must)[1] == {})
    assert file.read_text().split() == ["0", "1", "1", "1"]
    one.close()


def test_no_second_one_beside_a_command_that_runs(caplog):
    one = starving(command=("sleep", "60"))
    fed(one, *[tick(HELD)] * 10)
    first = one._command._process.pid
    fed(one, *[tick(HELD)] * 20)
    assert one._command._process.pid == first
    until(lambda: (one.close(), one._command._process is None)[1])
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_command_that_hangs_is_killed(monkeypatch, caplog):
    monkeypatch.setattr(module, "COMMAND_SECONDS", 0.0)
    one = starving(command=("sleep", "60"))
    fed(one, *[tick(HELD)] * 11)
    assert "has not ended in 0 s and is killed" in caplog.text
    until(lambda: (one.close(), one._command._process is None)[1])


def test_loop_waits_for_no_sleeping_command(monkeypatch):
    """It dies only when its disk answers; a loop that waits for it would lose its lease."""
    monkeypatch.setattr(module, "COMMAND_SECONDS", 0.0)
    one = starving(command=("sleep", "60"))
    fed(one, *[tick(HELD)] * 10)
    process = one._command._process

    def asleep(seconds):
        raise subprocess.TimeoutExpired("sleep", seconds)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process, "wait", asleep)
        fed(one, tick(HELD))
    until(lambda: fed(one, tick(FULL)) == [] and one._command._process is None)


@pytest.mark.parametrize(
    ("command", "said"), [(("/no/such/program",), "cannot be started: "), (("false",), "ended with exit code 1")]
)
def test_failed_command_is_said_service_goes_on(command, said, caplog):
    one = starving(command=command)
    fed(one, *[tick(HELD)] * 10)
    until(lambda: (one.write(tick(HELD)), said in caplog.text)[1])
    one.close()


def test_unrunnable_program_is_told_with_its_key(tmp_path):
    file = tmp_path / "move-be"
    with pytest.raises(ConfigError, match=f"be.starved.command: {file}: no such program"):
        check_command((str(file),))
    file.write_text("")
    with pytest.raises(ConfigError, match=f"be.starved.command: {file}: may not be executed"):
        check_command((str(file),))
    file.chmod(0o755)
    check_command((str(file), "--now"))
    check_command(("true",))
    check_command(())
    with pytest.raises(ConfigError, match=r"be.starved.command: 'no-such-program': no such program in PATH"):
        check_command(("no-such-program",))


def test_bound_that_left_least_held_be(tmp_path):
    told = tmp_path / "told"
    one = starving(after_seconds=3.0, command=["sh", "-c", f'echo "$RLCTL_REASON" > {told}'])
    for _ in range(3):
        one.write(tick(HELD, (Reason.GROWTH_RATE, Allocation(0.25, 2)), (Reason.ERROR_BUDGET, HELD)))
    until(lambda: told.exists() and told.read_text() == "error-budget\n")
    one.close()
