"""Who decides: what the fallback section may say, and what becomes of it."""

import pytest

from rlctl.agents.catalogue import build
from rlctl.agents.managers.table import Level, QuotaTable
from rlctl.agents.served.card import TrainedOn
from rlctl.agents.served.fallback import FallbackPolicy
from rlctl.agents.served.learned import VARIANTS
from rlctl.config.sections import FallbackSection
from rlctl.config.serve import PolicySection
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.workload import Weight
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.serve.announce import too_slow_a_rise, untrained_shield
from rlctl.serve.policy_setup import Configuration, build_policy, with_fallback


@pytest.mark.parametrize(
    "wrong", [{"answer_milliseconds": 0}, {"failure_percent": 101}, {"hold_seconds": 60, "most_hold_seconds": 30}]
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FallbackSection(**wrong)


def test_a_heuristic_needs_no_heuristic_behind_it():
    policy = build("heracles")
    assert with_fallback(policy, FallbackSection(), 1.0) is policy


def served(tmp_path, max_load_rps, weight, policy):
    """What a service would start with."""
    (tmp_path / "serve.yaml").write_text(
        "lc:\n  workload: {kind: cgroup, path: /lc}\n"
        f"  slo: {{target_milliseconds: 10, max_load_rps: {max_load_rps}}}\n"
        f"  latency: {{kind: jsonl, path: {tmp_path}/x}}\n"
        f"be: {{workloads: [{{kind: cgroup, path: /be}}], weight: {weight}}}\n"
        f"{policy}\n"
    )
    return Configuration(tmp_path / "serve.yaml")


def table_on(tmp_path, max_load_rps, weight, caplog, swept="minimum", rein="cpu"):
    """What is said at the start with a table of 500 rps."""
    levels = (Level(load_ratio=0.5, quota_cpus=0.5, cpuset_cpus=1),)
    QuotaTable(source="a test", target_milliseconds=10.0, max_load_rps=500.0, be_weight=swept, lc_cpus=1.0,
               be_cpus=1, rein=rein, levels=levels).write(tmp_path / "t.yaml")  # fmt: skip
    made = served(tmp_path, max_load_rps, weight, f"policy: {{name: table, options: {{file: {tmp_path}/t.yaml}}}}")
    assert made.deciders.policy.moves_reins is (rein != "cpu"), "a level of the CPUs is none of the link"
    return [record.getMessage() for record in caplog.records if "t.yaml" in record.getMessage()]


def test_table_of_another_host_is_refused_or_told(tmp_path, caplog):
    assert table_on(tmp_path, 500.2, "minimum", caplog) == []
    assert table_on(tmp_path, 500, "leave", caplog, swept="equal") == []
    (told,) = table_on(tmp_path, 500, "leave", caplog)
    assert "weight minimum, be.weight is leave" in told
    with pytest.raises(ConfigError, match=r"serve.yaml:1: lc: slo.max_load_rps is 400, .*t.yaml was swept with 500"):
        table_on(tmp_path, 400, "minimum", caplog)
    table_on(tmp_path, 500, "minimum", caplog, rein="link")
    with pytest.raises(ConfigError, match=r"t.yaml was swept on the link, which moves no level here"):
        table_on(tmp_path, 500, "minimum, link: none", caplog, rein="link")


@pytest.mark.parametrize("section", ["policy", "fallback"])
def test_table_whose_levels_stand_in_configuration_is_served(section, tmp_path):
    written = f"{section}: {{name: table, options: {{levels: [[0.5, 1.5, 2], [0.8, 0, 1]]}}}}"
    deciders = served(tmp_path, 500, "minimum", written).deciders
    if section == "policy":
        assert deciders.policy.levels == [[0.5, 1.5, 2], [0.8, 0, 1]]
    with pytest.raises(ConfigError, match=r"lc: the levels .* state it by slo.max_load_rps"):
        served(tmp_path, "auto", "minimum", written)


@pytest.mark.parametrize("name", ["ppo", "./bundle", "oracle", "no-such"])
def test_only_a_heuristic_can_be_fallen_back_to(name):
    with pytest.raises(PolicyError, match="is no heuristic to fall back to; there are none, weights"):
        with_fallback(build("heracles"), FallbackSection(name=name), 1.0)


def test_wrong_options_are_found_at_the_start():
    with pytest.raises(PolicyError, match="has no option 'nonsense'"):
        with_fallback(build("heracles"), FallbackSection(options={"nonsense": 1}), 1.0)


@pytest.mark.parametrize("end", VARIANTS)
def test_benchmark_only_policy_decides_on_no_host(end, make_bundle, tmp_path):
    plain, odd = make_bundle(tmp_path / "tiny"), make_bundle(tmp_path / f"odd{end}")
    for name in ("ppo", str(plain)):
        with pytest.raises(PolicyError, match=f"{end}' is for benchmarks only; take '{name}'"):
            build_policy(PolicySection(name=f"{name}{end}"))
    served = build_policy(PolicySection(name=str(odd)))
    assert (served.masked, served.price) == (True, 1.0), "only its folder is called so"


def test_a_learned_policy_gets_the_chain(make_bundle, tmp_path):
    policy = build_policy(PolicySection(name=str(make_bundle(tmp_path / "tiny"))))
    chain = with_fallback(policy, FallbackSection(name="feedforward"), 1.0)
    assert isinstance(chain, FallbackPolicy)
    assert (chain.policy, chain.heuristic.name) == (policy, "feedforward")
    chain.close()


def test_a_shield_that_training_never_had_is_told(make_bundle, tmp_path):
    usual, other = (Shield(load_profile(name), Limits(2)) for name in ("responsive", "heracles"))
    host = TrainedOn(
        profile="thesis-host", digest="0" * 12, weight=Weight.EQUAL, work=0.1, hosts=1,
        shield="responsive", shield_digest=usual.digest,
    )  # fmt: skip
    policy = build_policy(PolicySection(name=str(make_bundle(tmp_path / "tiny", plants=(host,)))))
    chain = with_fallback(policy, FallbackSection(), 1.0)
    assert untrained_shield(chain, usual) == untrained_shield(build("heracles"), other) == ""
    assert f"trained with shield responsive ({usual.digest}), not with heracles ({other.digest})" in untrained_shield(
        chain, other
    )
    chain.close()


def test_ticks_that_could_not_rise_are_told(always):
    policy, shield = always(lambda observation: observation.current), Shield(load_profile("responsive"), Limits(2))
    policy.masked = True
    assert too_slow_a_rise(policy, shield, 1.0) == ""
    assert "allows 6: BE stays small; take tick_seconds of 0.83 or more" in too_slow_a_rise(policy, shield, 0.5)
    slow = Shield(load_profile("responsive").model_copy(update={"growth_ratio_per_second": 0.02}), Limits(2))
    assert "allows 4: BE stays small; take another shield, or another policy" in too_slow_a_rise(policy, slow, 10.0)
    policy.masked = False
    assert too_slow_a_rise(policy, shield, 0.5) == ""
