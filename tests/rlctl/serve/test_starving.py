"""BE that has had too little for too long: who is told of it, when, and when no more."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlctl.config.serve import StarvedSection
from rlctl.envs.allocation import Allocation
from rlctl.envs.host.events import KINDS
from rlctl.safety.verdict import Bound, Reason
from rlctl.serve import starving as module
from rlctl.serve.starving import Starving
from tests.waiting import until

CPUS = 2
FULL, HELD = Allocation(2.0, 2), Allocation(0.02, 2)
FROZEN = Allocation(0.02, 2, frozen=True)


def tick(applied, reason=None, events=()):
    bounds = (Bound("some", reason, applied, "why"),) if reason else ()
    verdict = SimpleNamespace(decisive=bounds)
    return SimpleNamespace(applied=applied, verdict=verdict, acting="", policy="ppo", events=events)


def starving(**section):
    return Starving(StarvedSection(**{"after_seconds": 10.0, "again_seconds": 5.0} | section), CPUS, 1.0)


def fed(one, *ticks):
    """Events that these ticks brought."""
    told = []
    for each in ticks:
        one.write(each)
        told += one.events()
    return told


def test_be_starves_once_it_had_too_little_for_all_of_the_time():
    one = starving()
    assert fed(one, *[tick(HELD, Reason.LOAD_HIGH)] * 9) == []
    (told,) = fed(one, tick(HELD, Reason.LOAD_HIGH))
    assert told == "be-starved: BE might use 1.0% of its CPUs in the last 0.166667 min, mostly for: load-high"
    assert one.starved
    assert fed(one, *[tick(FROZEN)] * 50) == [], "told once"
    assert told.partition(":")[0] in KINDS


def test_who_held_it_back_is_whoever_did_so_most_often():
    one = starving()
    (told,) = fed(one, *[tick(HELD, Reason.LOAD_HIGH)] * 4, *[tick(HELD)] * 6)
    assert told.endswith("mostly for: policy ppo")


def test_a_moment_of_plenty_is_enough_not_to_starve():
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
    assert fed(one, *[gone] * 30) == []
    assert not one.starved
    assert fed(one, *[tick(HELD)] * 9) == [], "whoever comes begins anew"


@pytest.fixture
def noted(tmp_path):
    """A command that notes what it is told, and what it has noted."""
    file = tmp_path / "noted"
    words = "os.environ['RLCTL_SHARE'] + ' ' + os.environ['RLCTL_REASON']"
    script = f"import os; print({words}, file=open({str(file)!r}, 'a'))"
    return (sys.executable, "-c", script), lambda: file.read_text().splitlines() if file.exists() else []


def test_the_command_is_told_what_be_had_and_what_held_it(noted):
    command, said = noted
    one = starving(command=command)
    fed(one, *[tick(HELD, Reason.LOAD_HIGH)] * 10)
    until(lambda: said() == ["0.0100 load-high"])
    one.close()


def test_the_command_runs_again_while_be_starves(noted):
    command, said = noted
    one = starving(command=command)
    for times in (1, 2):
        fed(one, *[tick(HELD)] * (10 if times == 1 else 5))
        until(lambda times=times: len(said()) == times)
        until(lambda: fed(one) == [] and one._command.look() is None and one._command._process is None)
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


def test_the_loop_waits_for_no_command_that_sleeps_in_the_kernel(monkeypatch):
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
def test_a_command_that_fails_is_said_and_the_service_goes_on(command, said, caplog):
    one = starving(command=command)
    fed(one, *[tick(HELD)] * 10)
    until(lambda: (one.write(tick(HELD)), said in caplog.text)[1])
    one.close()
