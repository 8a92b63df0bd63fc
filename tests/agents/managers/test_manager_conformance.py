"""What every manager of the catalogue promises, whatever the sensors say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rlctl.agents.catalogue import NAMES, build
from rlctl.agents.conformance import CHECKS
from rlctl.agents.managers.prm_model import PrmModel, ThresholdBin
from rlctl.envs.actions import decode
from rlctl.envs.observation import Observation
from rlctl.safety.conformance import ODD, broken, histories

OPTIONS: dict[str, dict[str, Any]] = {"table": {"levels": ((0.5, 2.0, 2), (0.9, 0.25, 1))}}
"""What a manager cannot do without."""

MODEL = PrmModel(
    lc_cpus=1,
    lcutilmax_percent=90,
    bins=(
        ThresholdBin(low_percent=0, high_percent=200, rows=9, upper={"cpi": 1, "lc_cpu_seconds_per_request": 0.001}),
    ),
)


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize("varied", [{"model": MODEL}, {"time_scale": 15.0}], ids=["model", "time_scale"])
@pytest.mark.parametrize("name", NAMES)
def test_keeps_what_the_public_checks_ask(name: str, varied: dict[str, Any]) -> None:
    found = broken(CHECKS, lambda: build(name, **varied, **OPTIONS.get(name, {})))
    assert not [f"{check}: {what}" for check, _, what in found if what]


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize("name", NAMES)
def test_any_clock_gets_what_the_host_has(name: str) -> None:
    """The clocks of the public checks are all finite."""
    chance = random.Random(0)
    policy, twin = (build(name, model=MODEL, **OPTIONS.get(name, {})) for _ in range(2))
    for limits, ticks in histories():
        assert policy.start(limits) == twin.start(limits)
        for tick, current in ticks:
            now = chance.choice((tick.time_seconds, chance.choice(ODD)))
            asked = policy.act(seen := Observation(tick.but(time_seconds=now), current))
            assert decode(asked, current, limits) == asked == twin.act(seen)
            assert policy.note
        assert all(isinstance(remark, str) and remark for remark in policy.remarks)
