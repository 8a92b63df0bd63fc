"""A recorded run comes back as it was, and a log that is none is told apart in one line."""

import json
import warnings
from dataclasses import replace

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import rlctl.envs  # noqa: F401 - registers the ids
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.replay import ReplayHost, ReplayPlant, telemetry_of
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.telemetry import MAX_LOAD, Value, worst_of
from rlctl.log.record import Tick, TickLog, tick_as_json
from rlctl.safety.verdict import Verdict

TICKS = 12


@pytest.fixture
def recorded():
    """A run of a simulated host that loses every third window or so."""
    plant = SimPlant(load_profile("thesis-host").but(missing_ratio=0.3), training_load, TICKS, seed=4)
    ticks = []
    for index in range(TICKS):
        before = plant.current
        plant.wait()
        telemetry = plant.read()
        applied = plant.apply(MOVES[index % len(MOVES)].of(before, plant.limits))
        ticks.append(Tick(index, 0.0, telemetry, before, applied, Verdict(applied, applied, ()), applied, "test"))
    return ticks


@pytest.fixture
def path(recorded, tmp_path):
    log = TickLog(tmp_path / "ticks.jsonl")
    for tick in recorded:
        log.write(tick)
    log.close()
    return log.path


def test_telemetry_comes_back_whatever_is_applied(path, recorded):
    plant = ReplayPlant(path)
    assert plant.tick_seconds == 1.0
    assert plant.limits.cpus == 36
    for tick in recorded:
        plant.wait()
        assert plant.read() == tick.telemetry
        assert plant.apply(plant.limits.full) == plant.current == plant.limits.full
    assert plant.ended


def test_each_lc_comes_back_with_its_maximum(recorded):
    """What a policy has learned of an LC is in shares of it: with another one's a shadow forgets all at each change."""
    for tick in recorded:
        own = {name: tick.telemetry.but(counters={MAX_LOAD: Value(rps)}) for name, rps in (("web", 1e3), ("db", 5e3))}
        telemetry = worst_of({**own, "idle": tick.telemetry.but(counters={})})
        logged = json.loads(json.dumps(tick_as_json(replace(tick, telemetry=telemetry))))
        back = telemetry_of(logged)
        assert {name: lc.counters.get(MAX_LOAD) for name, lc in back.lcs.items()} == {
            "web": Value(1e3), "db": Value(5e3), "idle": None,
        }  # fmt: skip


def test_an_episode_is_the_recording(path):
    env = gym.make("rlctl/ReplayHost-v0", path=str(path))
    for _ in range(2):
        _, info = env.reset()
        assert info["telemetry"].time_seconds == 1.0
        over = []
        while not over or not over[-1]:
            _, _, terminated, truncated, info = env.step(0)
            assert not terminated
            over.append(truncated)
        assert len(over) == TICKS - 1
        assert info["telemetry"].time_seconds == TICKS


def test_gymnasium_accepts_it_without_a_warning(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("rlctl/ReplayHost-v0", path=path).unwrapped, skip_render_check=True)


def test_given_limits_and_period_count(path):
    env = ReplayHost(path, limits=Limits(cpus=4), tick_seconds=2.0)
    env.reset()
    assert env.current == Limits(cpus=4).safe
    assert env.observer.tick_seconds == 2.0


def test_a_torn_last_line_is_passed_over(path):
    text = path.read_text()
    path.write_text(text + text[: len(text) // 30])
    assert len(ReplayPlant(path).ticks) == TICKS


def test_a_whole_last_line_counts_without_its_newline(path):
    path.write_text(path.read_text().rstrip("\n"))
    assert len(ReplayPlant(path).ticks) == TICKS


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_numbers_that_json_cannot_hold_come_back_too(tmp_path, recorded, value):
    tick = recorded[0]
    absurd = Tick(
        0,
        0.0,
        tick.telemetry.but(cpi=Value(value)),
        tick.before,
        tick.proposed,
        tick.verdict,
        tick.applied,
        "test",
    )
    path = tmp_path / "ticks.jsonl"
    path.write_text(json.dumps(tick_as_json(absurd)) + "\n")
    assert ReplayPlant(path).read().cpi == Value(value)


def test_directory_is_a_log_with_rotated_files(path, recorded):
    path.rename(path.with_name("ticks.jsonl.1"))
    log = TickLog(path)
    log.header = lambda tick: {"log": 1}
    log.write(recorded[0])
    log.close()
    assert len(ReplayPlant(path.parent).ticks) == TICKS + 1
    assert len(ReplayPlant(path).ticks) == 1


def unsealed_lines(path):
    """The ticks as a log from before there were checksums has them."""
    ticks = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in tick.items() if key != "crc"} for tick in ticks]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"ticks\.jsonl:3: not a tick"),
        ("[1, 2]", r"ticks\.jsonl:3: not a tick"),
        ('{"time_seconds": 1.0, "target_seconds": 0.01}', r":3: .*'readings' is missing"),
        ('{"time_seconds": null, "target_seconds": 0.01}', r":3: not a tick"),
    ],
)
def test_a_bad_line_is_named_with_its_number(path, line, said):
    lines = [json.dumps(tick) for tick in unsealed_lines(path)]
    lines[2] = line
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match=said):
        ReplayPlant(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tick: tick["readings"].update(cpi={"missing": "no-such-reason"}), "no-such-reason"),
        (lambda tick: tick["readings"].update(no_such_reading={"value": 1.0, "age": 0.0}), "no_such_reading"),
        (lambda tick: tick["before"].update(quota_cpus=-1.0), "not positive"),
    ],
)
def test_a_tick_that_cannot_be_is_named_too(path, change, said):
    tick = unsealed_lines(path)[0]
    change(tick)
    path.write_text(json.dumps(tick) + "\n")
    with pytest.raises(ConfigError, match=said):
        ReplayPlant(path)


def test_an_absent_or_empty_log_says_so(tmp_path):
    with pytest.raises(ConfigError, match="there is no such log"):
        ReplayPlant(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match="longer run"):
        ReplayPlant(tmp_path / "empty.jsonl")
