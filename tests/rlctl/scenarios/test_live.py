"""Scenarios that ship load; a wrong one is one line with file and line."""

import pytest

from rlctl.bench.testbed import LivePlan
from rlctl.commands.bench_live import _minutes
from rlctl.envs.errors import ConfigError
from rlctl.envs.workload import Weight
from rlctl.safety.profile import load_profile
from rlctl.scenarios.live import LiveScenario
from rlctl.scenarios.shipped import load_scenario, shipped_scenarios


def test_what_ships_is_what_the_contract_names():
    live = {name: one for name, one in shipped_scenarios().items() if isinstance(one, LiveScenario)}
    assert set(live) == {"live-nginx", "live-memcached", "live-memory"}
    for name, scenario in live.items():
        assert scenario.name == name
        assert 0.0 < scenario.trace.rate(0.0) < 1.0
        assert scenario.testbed().target_seconds == 0.010


def test_an_unknown_scenario_lists_what_there_is():
    with pytest.raises(ConfigError, match="live-nginx"):
        load_scenario("live-ngnix")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("duration_seconds: 60", "duration: 60"), "duration"),
        (("duration_seconds: 60", "duration_seconds: .inf"), "duration_seconds is inf: .*finite"),
        (("low: 0.22", "low: 0.9"), "low"),
        (("high: 0.80", "high: 80"), r"high: 80 .*write 0\.80"),
        (("kind: sinusoid", "kind: sine"), "sinusoid"),
        (("weight: equal", "weight: huge"), "weight"),
        (("target_milliseconds: 10", "target_milliseconds: -1"), "target"),
    ],
)
def test_a_wrong_scenario_says_where(tmp_path, change, said):
    from rlctl.scenarios.shipped import scenarios_folder

    text = (scenarios_folder() / "live-nginx.yaml").read_text()
    assert change[0] in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(*change))
    with pytest.raises(ConfigError, match=rf"mine\.yaml:\d+: .*{said}"):
        load_scenario(str(path))


def plan(*managers, repeats=3):
    return LivePlan(load_scenario("live-nginx"), managers, repeats, load_profile("responsive"))


def test_repeats_begin_with_different_managers_and_each_measures_all():
    orders = [plan("a", "b", "c").order(repeat) for repeat in range(3)]
    assert len({order[0] for order in orders}) == 3
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)


def test_published_cores_and_periods_are_scaled_and_say_so():
    hybrid = plan("prm-hybrid").policy("prm-hybrid")
    assert (hybrid.time_scale, hybrid.core_cpus) == (15.0, 0.0278)
    assert any("0.0278" in remark for remark in hybrid.remarks)


def test_only_weights_sets_its_own_weight():
    one = plan("weights", "prm-hybrid")
    assert one.weight(one.policy("weights")) is Weight.MINIMUM
    assert one.weight(one.policy("prm-hybrid")) is Weight.EQUAL


def test_the_time_told_is_the_time_taken_and_never_0():
    short = load_scenario("live-nginx").model_copy(update={"duration_seconds": 5.0})
    assert _minutes(LivePlan(short, ("frozen",), 1, load_profile("responsive"))) == 1
    assert _minutes(plan("frozen", "none", repeats=1)) == 3  # search 40 s, solo 12 s, two runs of 64 s
    assert _minutes(plan("prm-eris", "none", repeats=1)) == 4  # the threshold model's recording as well
