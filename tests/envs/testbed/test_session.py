"""A live testbed: nginx beside stress-ng in groups of their own, under a load that is known."""

from __future__ import annotations

import time

import pytest

from rlctl.bench.scenarios import live_scenario
from rlctl.envs.telemetry import Value
from rlctl.envs.testbed.session import Testbed
from rlctl.envs.testbed.traces import constant
from tests.needs import COMPILER, needs


@pytest.mark.slow
@pytest.mark.host
def test_an_overload_does_not_spoil_the_next_search() -> None:
    """A run of `none` leaves a backlog that the first load tried would have to serve as well."""
    needs(programs=("nginx", "stress-ng", COMPILER))
    scenario = live_scenario("live-nginx")
    knee = scenario.knee.model_copy(update={"start_rps": 200.0, "step_rps": 100.0, "top_rps": 200.0})
    with Testbed(scenario.model_copy(update={"knee": knee})) as bed:
        before = bed.plant
        bed.follow(constant(30.0))
        time.sleep(1.0)
        assert bed.generator.stats().outstanding > 200
        bed.search()
        assert bed.slo.max_load_rps == 200.0
        assert bed.plant is not before
        bed.settle(constant(0.5))
        bed.plant.wait()
        load = bed.plant.read().load_ratio
        assert isinstance(load, Value)
        assert load.value == pytest.approx(0.5, abs=0.3)
