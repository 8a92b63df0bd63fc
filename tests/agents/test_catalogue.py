from typing import Any

import pytest

from rlctl.agents.catalogue import NAMES, build, options
from rlctl.agents.policy import Policy
from rlctl.envs.allocation import UNLIMITED, Limits
from rlctl.envs.errors import PolicyError
from rlctl.envs.workload import Weight

PRM = {"prm-eris", "prm-thesis", "prm-latency", "prm-hybrid", "prm-hybrid-tuned"}
PUBLISHED = PRM | {"heracles", "parties", "sideload", "koord-suppress", "hipster", "barbeque"}


def made(name: str) -> Policy:
    return build(name, **({"levels": ()} if name == "table" else {}))  # which is nothing without its table


def test_every_name_builds_the_manager_of_that_name() -> None:
    assert [made(name).name for name in NAMES] == list(NAMES)


def test_published_managers_and_references_run_bare() -> None:
    assert {name for name in NAMES if made(name).shielded} == {"feedforward", "table", "learned-table", "greedy-shield"}


def test_those_that_set_shares_want_the_minimum_weight() -> None:
    minimum = {name for name in NAMES if made(name).weight is Weight.MINIMUM}
    assert minimum == {"weights"} | PRM


def test_references() -> None:
    limits = Limits(cpus=4)
    starts = {name: build(name).start(limits) for name in ("none", "weights", "frozen", "static", "greedy-shield")}
    assert starts["none"].quota_cpus == starts["weights"].quota_cpus == starts["greedy-shield"].quota_cpus == UNLIMITED
    assert starts["frozen"].frozen
    assert starts["static"].quota_cpus == 1.0


def test_a_misspelt_manager_is_answered_with_the_closest() -> None:
    with pytest.raises(PolicyError, match=r"no manager 'prm-hybird'; did you mean 'prm-hybrid'\?"):
        build("prm-hybird")


def test_a_misspelt_option_is_answered_with_the_closest() -> None:
    with pytest.raises(PolicyError, match=r"no option 'cool_down'; did you mean 'cool_down_seconds'\?"):
        build("prm-hybrid", cool_down=3)
    with pytest.raises(PolicyError, match="it has none"):
        build("none", quota=3)


@pytest.mark.parametrize("option", ["name"])
def test_a_managers_name_is_no_option(option: str) -> None:
    assert option not in options("prm-hybrid")


def test_an_option_overrides_the_tuned_constant() -> None:
    tuned = build("prm-hybrid-tuned", suspend_load_ratio=0.92)
    assert tuned.suspend_load_ratio == 0.92  # type: ignore[attr-defined]
    assert tuned.cool_down_seconds == 180.0  # type: ignore[attr-defined]
    assert options("prm-hybrid-tuned")["cool_down_seconds"] == 180.0


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), 1e9, "fast"])
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_an_impossible_time_scale_is_refused(name: str, scale: float) -> None:
    with pytest.raises(PolicyError, match="time_scale"):
        build(name, time_scale=scale)


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "autorate": {"delay_ratio": 0.0, "base_ratio": 1.2, "least_ratio": 0.0},
    "feedforward": {"shared_cpus": -1.0, "lead_seconds": -1.0, "cpus_per_load": 0.0, "margin_ratio": 10.0},
    "heracles": {"enable_load_ratio": 0.9},
    "hipster": {"alert_ratio": 80, "safe_ratio": 0.9, "seed": -1, "bucket_ratio": 0.0},
    "koord-suppress": {"policy": "weight", "threshold_ratio": 65, "reserved_cpus": -1.0, "busy": ""},
    "learned-table": {"explore_ratio": 1.2, "lead_seconds": 11.0},
    "parties": {"interval_seconds": 0.0, "downsize_slack_ratio": 2.0, "tolerance_samples": 0},
    "prm-hybrid": {
        "suspend": "kill", "resume_level": "half", "enable_load_ratio": 0.9, "poll_seconds": 0.0, "host_levels": 0
    },
    "sideload": {"headroom_ratio": 20, "hold_seconds": 0.0, "busy": "lc"},
}  # fmt: skip
"""Options of managers, each with a value that cannot be, or under which BE would flap."""


@pytest.mark.parametrize(
    ("name", "option", "value"), [(name, *one) for name, wrong in IMPOSSIBLE.items() for one in wrong.items()]
)
def test_an_impossible_option_is_refused_by_its_name(name: str, option: str, value: Any) -> None:
    with pytest.raises(PolicyError, match=f"{name}: {option} is "):
        build(name, **{option: value})
