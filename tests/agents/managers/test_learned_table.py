"""The table that is learned while it runs: what it tries, what it keeps, what it makes of misses."""

from dataclasses import replace

import pytest

from rlctl.agents.managers.learned_table import LearnedTable
from rlctl.envs.allocation import Limits
from rlctl.envs.level_counts import TOP
from rlctl.envs.observation import Observer
from tests.doubles.levels import level_of

LIMITS = Limits(cpus=2)


class Host:
    """Holds its target while BE has no more than so many levels at this load."""

    def __init__(self, tell, bears, manager=None, limits=LIMITS, missed_slack=-0.5):
        self.tell, self.bears, self.missed_slack = tell, bears, missed_slack
        self.manager = manager or LearnedTable()
        self.now, self.current, self.missed = 0.0, self.manager.start(limits), 0
        self.observer = Observer(limits, 1.0)

    def run(self, seconds, load, **readings):
        for _ in range(seconds):
            self.now += 1.0
            held = level_of(self.current, LIMITS) <= self.bears(load)
            self.missed += not held
            told = self.tell(self.now, 0.8 if held else self.missed_slack, load_ratio=load, **readings)
            self.current = self.manager.act(self.observer.observe(told, self.current))
        return level_of(self.current, LIMITS)


def test_it_climbs_to_what_holds_and_stays(tell):
    host = Host(tell, lambda load: 6)
    assert host.run(60, 0.5) == 6
    assert host.missed == 1


def test_where_nothing_misses_be_gets_all(tell):
    host = Host(tell, lambda load: TOP)
    host.run(60, 0.5)
    assert host.current == LIMITS.full


def test_seen_load_is_known_higher_begins_at_minimum(tell):
    host = Host(tell, lambda load: round(20 * (1.0 - load)))
    for load in (0.3, 0.6):
        host.run(60, load)
    assert host.run(3, 0.3) == 14
    missed = host.missed
    assert host.run(3, 0.5) <= 11
    assert host.missed <= missed + 2, "the windows of a load that rose within them"
    assert host.run(2, 0.9) == 0


@pytest.mark.slow
def test_weaker_host_is_found_out(tell):
    host = Host(tell, lambda load: 8)
    host.run(300, 0.5)
    host.bears, host.missed = (lambda load: 3), 0
    host.run(60, 0.5)
    assert host.run(60, 0.5) == 3
    assert host.missed <= 15
    host.bears = lambda load: 8
    host.run(6000, 0.5)
    assert host.run(1, 0.5) >= 7, "and one that bears more again, in time"


def test_at_least_weight_be_rises_to_everything(tell):
    limits = replace(LIMITS, least_weight=True)
    well = Host(tell, lambda load: TOP, limits=limits)
    assert well.run(12, 0.5) == TOP
    assert well.run(1, 0.9) == TOP, "a load that was never seen, too"
    badly = Host(tell, lambda load: 6, limits=limits, missed_slack=-3.0)
    assert badly.run(120, 0.5) == 6
    assert badly.missed <= 4


def test_at_least_weight_frozen_be_runs_again(tell):
    host = Host(tell, lambda load: TOP, limits=replace(LIMITS, least_weight=True))
    frozen = host.observer.observe(tell(1.0, 0.1, load_ratio=0.5), LIMITS.safe)
    assert host.manager.act(frozen) == LIMITS.minimum


def test_be_without_work_teaches_nothing(tell):
    host = Host(tell, lambda load: TOP)
    assert host.run(60, 0.5, be_cpus=0.0) == 0


def test_learned_of_the_host_is_used_at_once(tell):
    host = Host(tell, lambda load: 6)
    host.run(60, 0.5)
    again = Host(tell, lambda load: 6)
    again.observer.experience.restore_state(host.observer.experience.state_dict())
    assert again.run(2, 0.5) == 6


@pytest.mark.parametrize("missing", ["load_ratio", "slack"])
def test_without_latency_or_load_be_has_the_minimum(tell, missing):
    manager, observer = LearnedTable(), Observer(LIMITS, 1.0)
    manager.start(LIMITS)
    readings = {"load_ratio": 0.1, "slack": 0.9}
    for now in range(20):
        manager.act(observer.observe(tell(float(now), **readings), LIMITS.minimum))
    readings.pop(missing)
    assert manager.act(observer.observe(tell(30.0, **readings), LIMITS.full)) == LIMITS.minimum
