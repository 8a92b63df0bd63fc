"""Before the first tick everything is used once: what cannot be done without ends the start, all else is a line."""

import logging
import time

import numpy as np
import pytest

from rlctl.agents import catalogue
from rlctl.agents.served.circuit_breaker import FailureBudget
from rlctl.agents.served.fallback import FallbackPolicy
from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import HostError, PermissionMissing
from rlctl.envs.telemetry import Missing, Telemetry, Why
from rlctl.safety.constants import MemoryBandwidth, MemoryPressure
from rlctl.safety.profile import load_profile
from rlctl.serve.self_test import _clock, self_test
from tests.doubles.plant import FakePlant


class Host(FakePlant):
    """A plant with knobs."""

    refusal = None
    rehearsed = 0

    @property
    def actuator(self):
        return self

    def rehearse(self):
        if self.refusal:
            raise self.refusal
        self.rehearsed += 1
        return 4


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.DEBUG, logger="rlctl")
    return lambda level=logging.DEBUG: [one.getMessage() for one in caplog.records if one.levelno == level]


def chained(policy, **budgets):
    return FallbackPolicy(policy, catalogue.build("static"), 1.0, FailureBudget(**budgets))


def test_all_is_well_in_one_line_each(always, told):
    host = Host()
    chain = chained(always(lambda o: Allocation(0.5, 1)))
    self_test(host, chain, 4711)
    chain.close()
    assert host.rehearsed == 1
    assert told(logging.WARNING) == []
    said = "\n".join(told())
    for part in ("4 knobs", "watchdog (pid 4711)", "latency ", "policy always answers within"):
        assert part in said
    assert [line.partition(" in ")[0] for line in told(logging.INFO)] == ["self-test: done"], "what works is -v's"


def test_unrunnable_command_is_told_before_be_starves(always, told):
    self_test(Host(), always(lambda o: o.current), 4711, command=("/no/such/program",))
    (line,) = told(logging.WARNING)
    assert line.startswith("self-test: be.starved.command: /no/such/program: no such program; nobody will be told")


def test_a_dry_run_writes_nothing_and_says_so(always, told):
    host = Host()
    self_test(host, always(lambda o: o.current), None, dry_run=True)
    assert host.rehearsed == 0
    assert "self-test: dry run: the knobs of BE are not tried" in told()
    assert told(logging.WARNING) == [], "a dry run has no watchdog, which is no lack"


def test_a_knob_that_refuses_ends_the_start(always):
    host = Host()
    host.refusal = PermissionMissing("cpu.max: may not be written")
    with pytest.raises(PermissionMissing, match=r"cpu\.max"):
        self_test(host, always(lambda o: o.current), 1)


def test_what_can_be_done_without_is_a_warning(always, told):
    class Deaf(Host):
        def read(self):
            gone = Missing(Why.GONE, "connection refused")
            return Telemetry(0.0, 0.01, tail_latency_seconds=gone, oldest_request_seconds=gone)

    self_test(Deaf(), always(lambda o: 1 / 0), None)
    silent, deaf, failing = told(logging.WARNING)
    assert "no watchdog" in silent
    assert "connection refused; until there is one BE stays at the safe allocation" in deaf
    assert "policy always fails: ZeroDivisionError" in failing


@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (lambda o: time.sleep(0.05) or Allocation(0.5, 1), "no answer within 10 ms; static decides in its place"),
        (lambda o: time.sleep(0.5), "no answer within 100 ms; static decides in its place"),
        (lambda o: Allocation(float("nan"), 1), "static decides in its place"),
        (lambda o: {}["missing"], "KeyError: 'missing'; static decides in its place"),
    ],
)
def test_policy_without_usable_answer_is_told_early(decide, said, always, told):
    chain = chained(always(decide), answer_milliseconds=10.0)
    self_test(Host(), chain, 1)
    (line,) = told(logging.WARNING)
    assert line.endswith(said)
    assert chain.start(Host().limits) == Host().limits.safe
    assert not chain.breaker._failures.count(0), "a rehearsal is no failure"
    chain.close()


def test_a_rehearsal_leaves_nothing_behind(always):
    started = []
    policy = always(lambda o: Allocation(0.5, 1))
    policy.start = lambda limits: started.append(limits) or limits.safe
    chain = chained(policy)
    self_test(Host(), chain, 1)
    chain.start(Host().limits)
    assert (chain.note, chain.fallback, chain.failed) == ("start", "", False)
    assert len(started) == 1, "and the policy is started anew with its first tick"
    chain.close()


def test_standing_clock_ends_start_wrong_date_is_told():
    with pytest.raises(HostError, match="stands still"):
        list(_clock(monotonic=lambda: 1.0, sleep=lambda _: None))
    ticks = iter(np.arange(9.0))
    ((level, line),) = _clock(monotonic=lambda: next(ticks), wall=lambda: 0.0, sleep=lambda _: None)
    assert (level, "before 2020" in line) == (logging.WARNING, True)


def test_guard_whose_sensor_host_lacks_is_told(always, told):
    plain = load_profile("responsive")
    both = plain.model_copy(
        update={
            "memory_pressure": MemoryPressure(hold_ratio=0.1, suspend_ratio=0.2, after_ticks=1, calm_seconds=1.0),
            "memory_bandwidth": MemoryBandwidth(limit_ratio=0.9),
        }
    )
    self_test(Host(), always(lambda o: o.current), 4711, profile=plain)
    assert told(logging.WARNING) == []
    self_test(Host(), always(lambda o: o.current), 4711, profile=both)
    assert [line.split(":")[1].strip() for line in told(logging.WARNING)] == [
        "guard memory-pressure never objects, for want of a sensor",
        "guard memory-bandwidth never objects, for want of a sensor",
    ]
