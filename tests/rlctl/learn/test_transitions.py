"""Transitions from logs are those that a learner on the host would have had, and nothing that no policy did is among
them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rlctl.agents import catalogue
from rlctl.agents.training.trial import Course
from rlctl.bench.scenarios import load_scenario
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.host_env import HostEnv
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.sim.seeds import SeedKind, kind_of
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.envs.ticklog import encode_line
from rlctl.envs.workload import Weight
from rlctl.learn.dataset_sim import RecordingPlan, grounds_of_hosts, grounds_of_scenarios, record
from rlctl.learn.dataset_sources import recording_of
from rlctl.learn.transitions import LONGEST, Cut, TransitionBuilder, TransitionStep, censored
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.wrapper import ShieldedEnv
from tests.doubles.plant import FakePlant
from tests.doubles.tick_logs import record_run

LIMITS = Limits(cpus=2)
LOADS = (0.2, 0.3, 0.5, 0.7, 0.95, 1.1, 0.4)
SAFETY = load_profile("responsive")


def refuse(damage):
    raise AssertionError(str(damage))


def random_moves(seed):
    """A policy that draws moves, those that the shield will not have among them."""
    dice = np.random.default_rng(seed)
    return lambda observation: int(dice.integers(len(MOVES)))


@pytest.fixture
def recorded(tmp_path, always):
    """A run of random moves on a fake host, in a log."""

    def run(ticks, loads=LOADS):
        shield, policy = Shield(SAFETY, LIMITS), always(random_moves(7))
        return record_run(tmp_path / "log", FakePlant(LIMITS, loads), policy, shield, ticks)

    return run


def test_log_gives_what_the_environment_gives(recorded):
    """Observations, masks, moves and rewards: otherwise a policy learns from another world than it is served in."""
    found = recording_of(recorded(120), None, refuse)
    (episode,) = found.episodes
    env = ShieldedEnv(HostEnv(FakePlant(LIMITS, LOADS)), Shield(SAFETY, LIMITS))
    observation, _ = env.reset()
    choose = random_moves(7)
    for step in range(len(episode)):
        assert np.array_equal(episode.observations[step], observation)
        assert np.array_equal(episode.action_mask[step], env.action_masks())
        move, before = choose(None), env.host.current
        observation, reward, _, _, info = env.step(move)
        assert episode.reward_terms[step].sum() == pytest.approx(reward, abs=1e-12)
        assert episode.reward_terms[step].tolist() == pytest.approx(list(info["reward"].values()), abs=1e-12)
        assert episode.overridden[step] == info["overridden"]
        done = MOVES[episode.actions[step]].of(before, LIMITS)
        assert done.frozen == info["allocation"].frozen
        if not info["overridden"]:
            assert done == info["allocation"]
    assert np.array_equal(episode.observations[-1], observation)
    assert len(episode) == 119
    assert episode.overridden.any()
    assert not episode.overridden.all()


def sound(**changes):
    return Telemetry(
        1.0, 0.010, Quantile(0.004, samples=500), load_ratio=Value(0.5), be_work_rate=Value(0.3), **changes
    )


RUNNING, FROZEN = Allocation(1.0, 2), LIMITS.safe


@pytest.mark.parametrize(
    ("telemetry", "before", "why"),
    [
        (sound(), RUNNING, None),
        (sound().but(tail_latency_seconds=Missing(Why.NO_DATA)), RUNNING, Cut.NO_LATENCY),
        (sound().but(tail_latency_seconds=Quantile(float("nan"))), RUNNING, Cut.NO_LATENCY),
        (sound().but(target_seconds=0.0), RUNNING, Cut.NO_LATENCY),
        (sound().but(be_work_rate=Missing(Why.NO_DATA)), RUNNING, Cut.NO_WORK),
        (sound(counters={"tail_is_lower_limit": Value(1.0)}), RUNNING, Cut.CLIENT),
        (sound(counters={"tail_is_lower_limit": Value(1.0)}).but(tail_latency_seconds=Quantile(0.02)), RUNNING, None),
        (sound().but(tail_latency_seconds=Missing(Why.FAILING)), RUNNING, None),
        (sound(counters={"offered_rps": Value(100.0), "error_rps": Value(2.0)}), RUNNING, Cut.CLIENT),
        (sound(counters={"offered_rps": Value(100.0), "error_rps": Value(0.5)}), RUNNING, None),
        (sound(counters={"error_rps": Missing(Why.STALE)}), RUNNING, None),
        (sound(lc_cpus=Value(1.0)), FROZEN, Cut.AT_CAP),
        (sound(lc_cpus=Value(1.0)), RUNNING, None),
        (sound(lc_cpus=Value(0.9)), FROZEN, None),
    ],
)
def test_misleading_tick_is_left_out(telemetry, before, why):
    assert censored(telemetry, before, LIMITS) is why


def moment(number, telemetry=None, before=RUNNING, applied=RUNNING):
    return TransitionStep(
        observation=np.full(3, number, np.float32),
        mask=np.ones(len(MOVES), np.bool_),
        telemetry=telemetry or sound(),
        before=before,
        applied=applied,
        proposed_move=0,
        executed_move=0,
        policy="x",
    )


def test_censored_tick_begins_and_ends_no_transition():
    builder = TransitionBuilder(LIMITS)
    lost = sound().but(tail_latency_seconds=Missing(Why.NO_DATA))
    for number in range(9):
        builder.add(moment(number, lost if number == 4 else None))
    builder.end()
    assert [one.observations[:, 0].tolist() for one in builder.episodes] == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert builder.cuts == {Cut.NO_LATENCY: 1}
    assert builder.ticks == 9


def test_late_latency_teaches_nothing_of_last_move():
    builder = TransitionBuilder(LIMITS, tick_seconds=1.0)
    late = sound().but(tail_latency_seconds=Quantile(0.005, 2.0, samples=99))
    for number in range(6):
        builder.add(moment(number, late if number == 3 else None))
    builder.end()
    assert [len(one) for one in builder.episodes] == [2, 1]
    assert builder.cuts == {Cut.OLD: 1}


def test_somebody_elses_change_is_no_effect():
    builder = TransitionBuilder(LIMITS)
    for number in range(6):
        builder.add(moment(number, before=RUNNING.but(quota_cpus=0.5) if number == 3 else RUNNING))
    builder.end()
    assert [len(one) for one in builder.episodes] == [2, 2]
    assert builder.cuts == {Cut.OTHERS: 1}
    rounded = TransitionBuilder(LIMITS)
    for number in range(4):
        rounded.add(moment(number, before=RUNNING.but(quota_cpus=1.0 + 1e-9)))
    assert not rounded.cuts


def test_long_run_is_parted_without_loss():
    builder = TransitionBuilder(LIMITS)
    for number in range(2 * LONGEST + 11):
        builder.add(moment(number))
    builder.end()
    assert [len(one) for one in builder.episodes] == [LONGEST, LONGEST, 10]
    assert builder.episodes[0].observations[-1, 0] == builder.episodes[1].observations[0, 0] == LONGEST
    assert not builder.cuts


def lines_of(log):
    return (log / "ticks.jsonl").read_text().splitlines()


def sealed(log, said):
    """Lines written anew, as a whole log."""
    lines = [encode_line({key: value for key, value in one.items() if key != "crc"}) for one in said]
    (log / "ticks.jsonl").write_bytes(b"".join(lines))


def test_damage_and_missing_lines_cut_and_are_counted(recorded):
    log = recorded(100)
    lines = lines_of(log)
    lines[31] = lines[31].replace('"policy":"always"', '"policy":"nobody"')
    del lines[61:64]
    (log / "ticks.jsonl").write_text("\n".join(lines) + "\n")
    told = []
    found = recording_of(log, None, lambda damage: told.append(str(damage)))
    assert [len(one) for one in found.episodes] == [29, 28, 36]
    assert found.censored == {Cut.DAMAGE: 1, Cut.GAP: 1}
    assert len(told) == 1
    assert found.source.ticks == 96
    assert found.source.transitions == 93


def test_missed_deadline_cuts_history_goes_on(recorded):
    log = recorded(40)
    said = [json.loads(line) for line in lines_of(log)]
    for one in said[21:]:
        one["time_seconds"] += 1.0
    whole = recording_of(log, None, refuse).episodes[0]
    sealed(log, said)
    found = recording_of(log, None, refuse)
    assert [len(one) for one in found.episodes] == [19, 19]
    assert found.censored == {Cut.GAP: 1}
    assert np.array_equal(found.episodes[1].observations, whole.observations[20:]), "the policy saw on"


def test_a_restart_and_a_new_target_cut(recorded):
    log = recorded(30)
    assert recording_of(recorded(30), None, refuse).censored == {Cut.RESTART: 1}
    said = [json.loads(line) for line in lines_of(log)]
    for one in said[11:]:
        one["target_seconds"] = 0.02
    sealed(log, said)
    found = recording_of(log, None, refuse)
    assert found.censored == {Cut.SETTINGS: 1, Cut.RESTART: 1}
    assert [len(one) for one in found.episodes] == [9, 19, 29]


def test_bare_manager_s_log_needs_a_shield(recorded):
    """As a live bench has them; one without a header says too little, whatever else is named."""
    whole = recording_of(log := recorded(50, loads=(0.1,)), None, refuse).episodes[0]
    header, *ticks = (json.loads(line) for line in lines_of(log))
    del header["shield"]
    sealed(log, [header, *ticks])
    with pytest.raises(ConfigError, match=r"ticks.jsonl:2: .*name one with --shield"):
        recording_of(log, None, refuse)
    (found,) = recording_of(log, SAFETY, refuse).episodes
    assert np.array_equal(found.observations, whole.observations)
    assert np.array_equal(found.action_mask, whole.action_mask)
    sealed(log, ticks)
    with pytest.raises(ConfigError, match=r"ticks.jsonl:1: no header says on which host"):
        recording_of(log, SAFETY, refuse)


def test_an_empty_log_is_refused(tmp_path):
    (tmp_path / "ticks.jsonl").touch()
    with pytest.raises(ConfigError, match="no tick is recorded"):
        recording_of(tmp_path, None, refuse)


def test_garbage_between_ticks_ends_no_export(recorded):
    log = recorded(20)
    lines = lines_of(log)
    lines[8:8] = ["}{", "[1]", '{"tick": 3}', "\x00\xff"]
    (log / "ticks.jsonl").write_text("\n".join(lines) + "\n")
    told = []
    found = recording_of(log, None, told.append)
    assert len(told) >= 3
    assert sum(map(len, found.episodes)) == 18


def ground():
    host = load_host("two-core-host")
    course = Course("small", host, training_load, Weight.EQUAL, ticks=60, safety=SAFETY, vary=True)
    return RecordingPlan(course, (5, 6), catalogue.build)


def test_hosts_are_recorded_under_exploring_managers():
    found = record(ground(), ["feedforward", "greedy-shield"], 0.3, seed=1)
    assert found.source.hosts == 4
    assert found.source.ticks == 240
    explored = np.concatenate([one.explored for one in found.episodes])
    assert 0.05 < explored.mean() < 0.35
    for one in found.episodes:
        steps = np.arange(len(one))
        assert one.action_mask[steps, one.actions].all(), "never a move that the shield refuses"
        assert np.array_equal(one.explored, one.actions != one.proposed)
        assert not one.overridden.any()
    again = record(ground(), ["feedforward", "greedy-shield"], 0.3, seed=1)
    assert again.source == found.source
    assert all(np.array_equal(a.actions, b.actions) for a, b in zip(found.episodes, again.episodes, strict=True))
    assert record(ground(), ["feedforward"], 0.3, seed=2).source.sha256 != found.source.sha256


def test_who_explores_takes_another_move():
    found = record(ground(), ["feedforward"], 1.0, seed=1)
    assert all(one.explored.all() for one in found.episodes)


def test_without_exploration_a_host_is_the_manager_s():
    found = record(ground(), ["heracles"], 0.0, seed=0)
    assert not any(one.explored.any() for one in found.episodes)


def test_recordings_take_training_seeds():
    from rlctl.agents.training.host_kinds import load_hosts

    scenario = load_scenario("two-core")
    grounds = [*grounds_of_scenarios([scenario], 3, SAFETY, 40.0), *grounds_of_hosts(load_hosts(), 20, seed=3)]
    assert all(kind_of(seed) is SeedKind.TRAINING for one in grounds for seed in one.seeds)
    assert grounds[0].course.ticks == 40
    blind = next(one for one in grounds if "cpi" in one.absent)
    short = replace(blind, course=replace(blind.course, ticks=20), seeds=blind.seeds[:1])
    found = record(short, ["feedforward"], 0.0, seed=0)
    seen = record(replace(short, absent=()), ["feedforward"], 0.0, seed=0)
    assert not np.array_equal(found.episodes[0].observations, seen.episodes[0].observations)
