"""Simulated scenarios that ship are the suite of the contract; each is one that BE-frozen can hold."""

from pathlib import Path

import numpy as np
import pytest

from rlctl.bench.scenarios import load_scenario, shipped_scenarios
from rlctl.bench.sim_scenario import CAPPED, REINED, SUITE, SimScenario
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.seeds import evaluation
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import configs_folder


def simulated():
    return {name: one for name, one in shipped_scenarios().items() if isinstance(one, SimScenario)}


def test_what_ships_is_what_the_contract_names():
    assert set(simulated()) == {
        *SUITE,
        "thesis-up-down",
        "thesis-shuffled",
        "two-core-nginx",
        *CAPPED,
        *REINED,
    }
    for name, scenario in simulated().items():
        assert scenario.name == name
        assert scenario.host().limits(levels=scenario.levels).cpus >= 1
    assert isinstance(load_scenario("live-nginx"), LiveScenario)


def test_the_thesis_scenario_is_that_of_the_thesis():
    thesis = load_scenario("thesis")
    load = thesis.load_model(1, thesis.ticks, thesis.tick_seconds)
    assert thesis.ticks == 3000
    assert (load.min() * 450, load.max() * 450) == (pytest.approx(350, abs=0.1), pytest.approx(450))
    assert thesis.be.weight is Weight.MINIMUM


def test_the_digest_is_of_what_decides_a_result():
    thesis = load_scenario("thesis")
    same = thesis.model_copy(update={"description": "told otherwise"})
    other = thesis.model_copy(update={"load": {**thesis.load, "order": "up"}})
    assert thesis.digest == same.digest != other.digest
    assert load_scenario("noisy").host().digest != thesis.host().digest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["thesis", "thesis-up-down", "diurnal", "bursty", "flash-crowd", "noisy"])
def test_frozen_be_holds_the_target(name):
    scenario = load_scenario(name)
    seeds = [evaluation(number) for number in range(30)]
    batch = SimBatch(scenario.host(), seeds, scenario.load_model, scenario.ticks)
    missed = 0
    for _ in range(scenario.ticks):
        window = batch.step()  # a batch begins with BE frozen
        missed += np.count_nonzero(window.latency_seconds > 0.010)
    assert missed <= 0.001 * 30 * scenario.ticks


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("plant: sim", "plant: moon"), r":\d+: plant: host or sim"),
        (("plant: sim", ""), "plant: host or sim"),
        (("order: triangle", "order: sideways"), r":\d+: .*order"),
        (("duration_seconds: 3000", "duration_seconds: -1"), r":\d+: .*duration_seconds"),
        (("core_cpus", "core_cpu"), r":\d+: .*core_cpus"),
        (("weight: minimum", "weight: huge"), r":\d+: .*weight"),
    ],
)
def test_a_wrong_scenario_says_where(tmp_path, change, said):
    text = (configs_folder("scenarios") / "thesis.yaml").read_text()
    assert change[0] in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(*change))
    with pytest.raises(ConfigError, match=rf"mine\.yaml.*{said}"):
        load_scenario(str(path))


@pytest.mark.parametrize(
    ("change", "said"),
    [({"profile": "thesis-hots"}, "thesis-host"), ({"constants": {"speed_of_light": 3.0}}, "speed_of_light")],
)
def test_a_host_that_cannot_be_names_the_scenario(change, said):
    with pytest.raises(ConfigError, match=f"scenario thesis: .*{said}"):
        load_scenario("thesis").model_copy(update=change).host()


def test_profile_is_looked_for_beside_scenario(tmp_path, monkeypatch):
    folder, here = tmp_path / "scenarios", tmp_path / "here"
    text = (
        (configs_folder("scenarios") / "thesis.yaml").read_text().replace("profile: thesis-host", "profile: mine.yaml")
    )
    host = (configs_folder("scenarios").parent / "plants" / "thesis-host.yaml").read_text()
    for place, name in ((folder, "beside"), (here, "current")):
        place.mkdir()
        (place / "mine.yaml").write_text(host.replace("name: thesis-host", f"name: {name}"))
    (folder / "my.yaml").write_text(text)
    monkeypatch.chdir(here)
    assert load_scenario(str(folder / "my.yaml")).host().name == "beside"
    Path(folder / "mine.yaml").unlink()
    assert load_scenario(str(folder / "my.yaml")).host().name == "current"


@pytest.mark.parametrize(("name", "value"), [("drift_cv", 15.0), ("tail_cv", 17.0), ("phase_sd", 10.0)])
def test_a_percentage_for_noise_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}: should be less than or equal"):
        load_scenario("thesis").host().but(**{name: value})
