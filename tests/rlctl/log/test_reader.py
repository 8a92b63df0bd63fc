"""A recorded tick comes back as it was, and a line that is none is told with its number."""

import json
from dataclasses import replace

import pytest

from rlctl.envs.actions import MOVES
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.telemetry import MAX_LOAD, Value, worst_of
from rlctl.log.kept import write_ticks
from rlctl.log.reader import read_log, telemetry_of
from rlctl.log.record import Tick, tick_as_json
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


@pytest.mark.parametrize("value", [0.5, float("inf"), float("-inf")])
def test_ticks_come_back_as_they_were(recorded, tmp_path, value):
    recorded[0] = replace(recorded[0], telemetry=recorded[0].telemetry.but(cpi=Value(value)))
    write_ticks(path := tmp_path / "ticks.jsonl", recorded)
    assert [one.tick for one in read_log([path], pytest.fail)] == recorded


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tick: tick.pop("readings"), "'readings' is missing"),
        (lambda tick: tick.update(time_seconds=None), "not a tick"),
        (lambda tick: tick["readings"].update(cpi={"missing": "no-such-reason"}), "no-such-reason"),
        (lambda tick: tick["readings"].update(no_such_reading={"value": 1.0, "age": 0.0}), "no_such_reading"),
        (lambda tick: tick["before"].update(quota_cpus=-1.0), "not positive"),
    ],
)
def test_a_tick_that_cannot_be_is_named(recorded, tmp_path, change, said):
    plain = [tick_as_json(tick) for tick in recorded[:3]]
    change(plain[2])
    path = tmp_path / "ticks.jsonl"
    path.write_text("".join(f"{json.dumps(tick)}\n" for tick in plain))
    damages = []
    assert len(list(read_log([path], damages.append))) == 2
    assert str(damages[0]).startswith(f"{path}:3: ")
    assert said in str(damages[0])
