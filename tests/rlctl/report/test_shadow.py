"""Shadows see what was in force, never what they asked for; and whatever one of them does, the others go on."""

import math
import threading
from dataclasses import replace

import numpy as np
import pytest

from rlctl.agents import catalogue
from rlctl.envs.allocation import Allocation
from rlctl.envs.log_lines import log_files
from rlctl.envs.observation import Frame
from rlctl.envs.reins import USE, Rein
from rlctl.envs.rows import LIMIT, row_of
from rlctl.envs.telemetry import Missing, Value, Why
from rlctl.log import tail as tail_module
from rlctl.log.reader import read_log
from rlctl.log.replay import limits_of
from rlctl.log.tail import LogTail
from rlctl.report import shadow_watch as module
from rlctl.report.shadow_report import gather_ticks
from rlctl.report.shadow_watch import ShadowLog, Shadows, read_watched, shadow_files
from rlctl.safety.verdict import Bound, Reason


def refuse(damage):
    raise AssertionError(str(damage))


def decisions(folder):
    return list(read_log(log_files(folder), refuse))


@pytest.fixture
def watch(request):
    """What some policies say of a log."""

    def watched(folder, *policies):
        shadows = Shadows(policies)
        request.addfinalizer(shadows.close)
        return [shadows.see(decision) for decision in decisions(folder)]

    return watched


def named(always, name, decide):
    policy = always(decide)
    policy.name = name
    return policy


def test_readings_and_allocation_are_those_in_force(recorded_run, watch, always):
    folder = recorded_run().go(30)
    seen = []

    def decide(observation):
        seen.append(observation)
        return Allocation(0.5, 1)  # never in force

    watch(folder, always(decide))
    ticks = [decision.tick for decision in decisions(folder)]
    assert [one.current for one in seen] == [tick.before for tick in ticks]
    assert [one.telemetry for one in seen] == [tick.telemetry for tick in ticks]
    limits = limits_of(one for tick in ticks for one in (tick.before, tick.applied))
    shown = [ticks[20 - lag] for lag in (16, 8, 4, 2, 1, 0)]
    frames = [Frame(tick.telemetry, tick.before, row_of(LIMIT, limits)).values(1.0) for tick in shown]
    np.testing.assert_array_equal([frame.values(1.0) for frame in seen[20].frames], frames)


def test_the_policy_that_acts_agrees_with_itself(recorded_run, watch, always):
    run = recorded_run()
    folder = run.go(40)
    for watched in watch(folder, always(lambda observation: run.plant.limits.full)):
        assert watched.answers["always"].allowed == watched.applied


def test_shadow_hears_each_ruling_and_the_end(recorded_run, always):
    """As in service: what learns from the shield would be another policy otherwise."""
    run = recorded_run()
    policy = always(lambda observation: run.plant.limits.full)
    heard, closed = [], []
    policy.learn_ruling, policy.close = heard.append, lambda: closed.append(True)
    shadows = Shadows((policy,))
    said = [shadows.see(decision) for decision in decisions(run.go(20))]
    shadows.close()
    assert [one.allocation for one in heard] == [one.answers["always"].allowed for one in said[:-1]]
    assert closed == [True]


def test_who_acts_during_pause_is_paused(recorded_run, watch, always):
    """A bound of the service is no guard's correction, and no shadow is credited with what it forbade."""
    run = recorded_run()
    paused = Bound("pause", Reason.OPERATOR, run.plant.limits.safe, "somebody said so")
    run._controller._said = lambda limits: (paused,)
    said = watch(run.go(20), always(lambda observation: run.plant.limits.minimum))
    answers = [watched.answers["always"] for watched in said]
    assert all(watched.applied.frozen for watched in said)
    assert all(answer.allowed.frozen and "pause" not in answer.guards for answer in answers)
    assert any(not answer.guards for answer in answers)


def test_shadow_knows_what_a_policy_would(recorded_run, always):
    """The price of a violation, and after a reload what the host has taught; else it is judged as another policy."""
    logged, asked = decisions(recorded_run().go(30)), []
    policy = always(lambda observation: asked.append(observation) or observation.current)
    policy.learns = True
    shadows = Shadows([policy])
    for one in logged:
        shadows.see(replace(one, tick=replace(one.tick, price=0.25)))
    assert {one.price for one in asked} == {0.25}
    taught = asked[-1].experience
    shadows.see(logged[0])  # another run
    assert (asked[-1].experience, asked[-1].price) == (taught, 1.0)
    first = logged[0].tick
    shadows.see(replace(logged[0], tick=replace(first, telemetry=first.telemetry.but(target_seconds=0.5))))
    assert asked[-1].experience is not taught, "of another target it says nothing"
    shadows.close()


def test_window_of_failed_requests_is_missed(recorded_run, always):
    logged = decisions(recorded_run().go(2))[-1]
    failing = logged.tick.telemetry.but(
        tail_latency_seconds=Missing(Why.FAILING), oldest_request_seconds=Missing(Why.NO_DATA)
    )
    shadows = Shadows([always(lambda observation: observation.current)])
    assert shadows.see(replace(logged, tick=replace(logged.tick, telemetry=failing))).met is False
    shadows.close()


def test_be_used_is_of_link_in_hand(recorded_run, always):
    """A level of the link taken for CPUs would gain CPU time that BE never wanted, and promote whoever asks for it."""
    logged = decisions(recorded_run().go(2))[-1]
    linked = logged.tick.telemetry.but(rein="link", counters={USE[Rein.LINK]: Value(0.4)})
    linked = replace(logged, tick=replace(logged.tick, telemetry=linked))
    for moves, used in ((True, 0.8), (False, None)):
        policy = always(lambda observation: observation.current)
        policy.moves_reins = moves
        shadows = Shadows([policy])
        assert shadows.see(logged).be_cpus == logged.tick.telemetry.be_cpus.value
        assert shadows.see(linked).be_cpus == used
        shadows.close()


def test_ticks_of_stand_ins_are_left_out(recorded_run, watch, always):
    run = recorded_run()
    said = watch(run.go(20), always(lambda observation: run.plant.limits.full))
    assert len(gather_ticks(said).rows) == 20
    stood_in = [replace(one, acting="feedforward") if place < 5 else one for place, one in enumerate(said)]
    found = gather_ticks(stood_in)
    assert (len(found.rows), found.left_out) == (15, 5)
    broken = {**said[0].header, "limits": None}
    assert len(gather_ticks([*said[:12], *(replace(one, header=broken) for one in said[12:])]).rows) == 12
    first, other = ({**said[0].header, "targets_seconds": {"web": 0.01, "db": target}} for target in (0.02, 0.03))
    stricter = [replace(one, header=first if one.index < said[12].index else other) for one in said]
    assert len(gather_ticks(stricter).rows) == 8, (
        "with another target of the second LC a window that was met is another one"
    )


def test_failing_shadow_counts_and_gets_safe_allocation(recorded_run, watch, always):
    folder = recorded_run().go(6)

    def raises(observation):
        raise RuntimeError("no idea")

    def leaves(observation):
        raise SystemExit(3)

    said = watch(
        folder,
        named(always, "raises", raises),
        named(always, "leaves", leaves),
        named(always, "nonsense", lambda observation: 999),
        named(always, "good", lambda observation: Allocation(0.02, 1)),
    )
    for watched in said:
        assert watched.answers["raises"].failed == "RuntimeError: no idea"
        assert watched.answers["leaves"].failed.startswith("SystemExit")
        assert watched.answers["nonsense"].failed == "action 999 is outside the table of 35 moves"
        assert all(watched.answers[name].allowed.frozen for name in ("raises", "leaves", "nonsense"))
        assert not any(one.late for one in watched.answers.values())
        assert watched.answers["good"].failed == ""


def test_hanging_shadow_is_late_and_delays_once(recorded_run, watch, always, monkeypatch):
    monkeypatch.setattr(module, "HANG_SECONDS", 0.05)
    folder = recorded_run().go(5)
    release = threading.Event()
    try:
        said = watch(
            folder,
            named(always, "hangs", lambda observation: release.wait(20) and None),
            named(always, "good", lambda observation: Allocation(0.02, 1)),
        )
    finally:
        release.set()
    answers = [watched.answers["hangs"] for watched in said]
    assert all(one.late for one in answers)
    assert answers[0].failed == "no answer within 50 ms"
    assert all(one.failed == "an earlier call still hangs" for one in answers[1:])
    assert not any(watched.answers["good"].failed for watched in said)


def test_who_exceeds_its_cpu_budget_is_late(recorded_run, watch, always, monkeypatch):
    monkeypatch.setattr(module.FailureBudget, "answer_within", lambda self, tick_seconds: 1e-9)
    (watched, *_) = watch(recorded_run().go(2), always(lambda observation: Allocation(0.02, 1)))
    answer = watched.answers["always"]
    assert answer.late
    assert answer.proposed.frozen
    assert "of CPU time" in answer.failed


def test_policy_is_started_anew_each_run(recorded_run, watch, always):
    recorded_run().go(3)
    folder = recorded_run().go(3)
    starts = []
    policy = always(lambda observation: Allocation(0.02, 1))

    def start(limits):
        starts.append(limits)
        if len(starts) == 1:
            raise RuntimeError("not yet")

    policy.start = start
    said = watch(folder, policy)
    assert [bool(one.answers["always"].failed) for one in said] == [True, False, False, False, False, False]
    assert len(starts) == 3
    assert len({one.run for one in said}) == 2


def test_bound_from_what_is_in_force_refuses_nobody(recorded_run, watch):
    run = recorded_run()
    (*_, watched) = watch(run.go(4), catalogue.build("greedy-shield"))
    answer = watched.answers["greedy-shield"]
    assert (answer.guards, answer.refused) == (("growth-rate",), False)


def test_ticks_without_header_are_passed_over(recorded_run):
    shadows = Shadows([catalogue.build("frozen")])
    said = [shadows.see(replace(one, header={})) for one in decisions(recorded_run().go(3))]
    shadows.close()
    assert said == [None] * 3
    assert (shadows.ticks, shadows.unruled) == (3, 3)


def test_said_is_read_back_through_rotations(recorded_run, watch, tmp_path, always):
    def raises(observation):
        raise RuntimeError("no idea")

    recorded_run().go(30)
    said = watch(recorded_run().go(30), catalogue.build("feedforward"), named(always, "raises", raises))
    path = tmp_path / "shadow.jsonl"
    log = ShadowLog(path, 10_000, keep=9)
    for watched in said:
        log.write(watched)
    log.close()
    files = shadow_files(tmp_path)
    assert len(files) > 2
    read = list(read_watched(files, refuse))
    known = ("run", "index", "wall_seconds", "acting", "load_ratio", "met", "be_cpus", "applied", "overridden")
    for one, was in zip(read, said, strict=True):
        assert all(getattr(one, name) == getattr(was, name) for name in known)
        for name, answer in one.answers.items():
            assert replace(answer, cpu_seconds=0.0) == replace(was.answers[name], cpu_seconds=0.0)
            assert math.isclose(answer.cpu_seconds, was.answers[name].cpu_seconds, abs_tol=1e-6)
        assert one.header["shadows"].keys() == {"feedforward", "raises"}
        assert one.header["started"] == was.header["started"]
    path.rename(tmp_path / "shadow.jsonl.0")  # for a moment of each rotation there is no newest file
    assert shadow_files(tmp_path) == files[:-1]


def test_growing_log_is_followed_through_rotations(recorded_run):
    run = recorded_run(rotate_bytes=30_000)
    tail = LogTail(run.go(3))
    found = tail.poll()
    for _ in range(4):
        run.go(4)
        found += tail.poll()
    run.log.close()
    other = recorded_run(rotate_bytes=30_000)
    other.go(5)
    found += tail.poll()
    tail.close()
    assert [one.tick.index for one in found] == [*range(19), *range(5)]
    assert len({one.header["started"] for one in found}) == 2
    assert all(one.unbroken for one in found[1:])
    assert found[0].first


def test_stopped_reader_catches_up_with_whole_files(recorded_run):
    run = recorded_run(rotate_bytes=20_000)
    run.log.keep = 50
    tail = LogTail(run.go(3))
    found = tail.poll()
    run.go(60)
    assert len(list(run.folder.iterdir())) > 4
    found += tail.poll()
    tail.close()
    assert [one.tick.index for one in found] == list(range(63))
    assert all(one.unbroken for one in found[1:])


def test_header_in_force_is_found_first(recorded_run, monkeypatch):
    monkeypatch.setattr(tail_module, "TAIL_BYTES", 8000)
    tail = LogTail(recorded_run().go(40))
    found = tail.poll()
    tail.close()
    assert 1 < len(found) < 10
    assert found[-1].tick.index == 39
    assert not any(one.first for one in found), "what the guards remembered was of a tick that is passed over"
    assert all(one.header["limits"]["cpus"] == 2 for one in found)


def test_damage_in_growing_log_is_counted(recorded_run):
    run = recorded_run()
    tail = LogTail(run.go(2))
    tail.poll()
    with run.log.path.open("ab") as file:
        file.write(b'nonsense\n{"log":1,"prev":"","crc":"00000000"}\n')
    run.go(2)
    found = tail.poll()
    tail.close()
    assert ([one.tick.index for one in found], tail.damaged) == ([2, 3], 2)
    assert [one.unbroken for one in found] == [False, True]
