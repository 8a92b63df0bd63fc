"""Simulated hosts whose link or disk moves BE's level: when it is taken, and what a level of it costs and brings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.agents.training.host_kinds import load_hosts
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.sim_scenario import REINED
from rlctl.envs.allocation import Allocation
from rlctl.envs.allocations import Allocations
from rlctl.envs.observation import LAGS, Observer
from rlctl.envs.observations import VectorObserver
from rlctl.envs.reins import CARRIED_RATIO, CPU, DISK, DISK_CARRIED_RATIO, EVIDENCE, LINK, OTHERS, USE, Rein, used_cpus
from rlctl.envs.sim.physics import Hosts
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.sim.residuals import MANY_SEEDS, agreement, residuals
from rlctl.envs.sim.surface import read_surface
from rlctl.envs.workload import Weight

SENDFILE = load_profile("sendfile-link")
DIRECT = load_profile("capped-disk").but(rein=DISK, link_be_bytes=1e9, link_be_cv=0.0)
QUIET = {"drift_cv": 0.0, "tail_cv": 0.0}
LOADS, LEVELS = st.floats(0.1, 0.8), st.floats(0.02, 1.0)


def batch(profile: HostProfile, load: float = 0.3, count: int = 1) -> SimBatch:
    seeds = list(range(1, count + 1))
    return SimBatch(profile, seeds, lambda seed, ticks, seconds: np.full(ticks, load), 400, weight=Weight.MINIMUM)


def at(hosts: SimBatch, level: float, frozen: bool = False) -> Allocation:
    """A level of BE, as a policy asks for it."""
    return hosts.limits.full.but(quota_cpus=level * hosts.limits.cpus, frozen=frozen)


def held_by(profile: HostProfile, load: float, level: float, periods: int = 6) -> tuple[SimBatch, list[float]]:
    """A host after some periods at a level on the rein that is its other one, and the latencies by the target."""
    hosts = batch(profile, load)
    hosts.take_reins()
    hosts.apply([at(hosts, level)])
    ratios = []
    for _ in range(periods):
        hosts.step()
        ratios.append(float(hosts.truth().latency_ratio[0]))
    return hosts, ratios


@pytest.mark.parametrize("profile", [SENDFILE, DIRECT])
def test_other_rein_is_taken_by_evidence(profile: HostProfile) -> None:
    hosts = batch(profile)
    hosts.apply([at(hosts, 0.5)])
    reins = []
    for _ in range(4 + EVIDENCE):
        hosts.step()
        reins.append(hosts.telemetry()[0].rein)
    other = Rein.LINK if profile is SENDFILE else Rein.DISK
    assert reins == [Rein.CPU] * EVIDENCE + [other] * 4
    told = hosts.telemetry()[0]
    assert used_cpus(told, hosts.limits.cpus) == pytest.approx(0.5, rel=0.1)
    assert {OTHERS, USE[other]} <= told.counters.keys()


def test_frozen_be_speaks_for_nothing() -> None:
    """An LC that misses alone must not change what holds BE."""
    hosts = batch(SENDFILE, 1.3)
    hosts.apply([at(hosts, 0.5, frozen=True)])
    missed = []
    for _ in range(5):
        hosts.step()
        missed.append(bool(hosts.truth().latency_ratio[0] > 1.0))
    assert any(missed)
    assert hosts.hosts.rows["rein"] == CPU


def test_cpu_managers_meet_the_same_host() -> None:
    """Who does not move reins is on the host as it was without them."""
    reined, plain = batch(SENDFILE), batch(SENDFILE.model_copy(update={"rein": None}))
    reined.keep_to_cpus()
    for quota in (1.0, 0.5, 0.02, 0.2, 1.0):
        windows = []
        for hosts in (reined, plain):
            hosts.apply([at(hosts, quota)])
            windows.append(hosts.step().rows)
        assert windows[0] == windows[1]


@settings(max_examples=30)
@given(st.sampled_from([(SENDFILE, CARRIED_RATIO), (DIRECT, DISK_CARRIED_RATIO)]), LOADS, LEVELS)
def test_be_has_its_part_of_what_is_left(host: tuple[HostProfile, float], load: float, level: float) -> None:
    profile, carried_ratio = host
    hosts, ratios = held_by(profile.but(**QUIET), load, level)
    values = profile.values()
    lc = load * profile.lc.max_load_rps * values["link_lc_bytes"] / values["link_bytes_per_second"]
    assert hosts.window is not None
    if lc + level * (carried_ratio - lc) < 0.85:
        assert ratios[-1] < 1.0, "what is left is not what the LC waits for"
        assert hosts.window.be_work_ratio[0] == pytest.approx(level * max(carried_ratio - lc, 0.0), abs=0.06)


@settings(max_examples=30)
@given(st.sampled_from([SENDFILE, DIRECT]), LOADS, LEVELS, LEVELS)
def test_more_of_a_level_never_gives_less(profile: HostProfile, load: float, one: float, other: float) -> None:
    (few, early), (many, late) = (held_by(profile.but(**QUIET), load, level, 1) for level in sorted((one, other)))
    assert few.window is not None and many.window is not None  # noqa: PT018
    assert many.window.be_work_ratio[0] >= few.window.be_work_ratio[0] - 1e-9
    assert late[0] >= early[0] * (1.0 - 1e-9)


def test_halved_link_is_followed_and_found_again() -> None:
    """As on a live host: what it carries falls by the first miss, and rises in steps once it is back."""
    hosts = batch(SENDFILE.but(**QUIET, link_step_ratio=0.5, link_step_seconds=40.0), 0.2)
    hosts.take_reins()
    missed, carried = [], []
    for _ in range(119):
        late = any(missed[-2:])  # a policy stops BE then
        hosts.apply([at(hosts, 1.0, frozen=late)])
        hosts.step()
        missed.append(bool(hosts.truth().latency_ratio[0] > 1.0))
        carried.append(float(hosts.hosts.rows["carried_bytes"][0]) / 37.5e6)
    assert not any(missed[:40])
    assert sum(missed[40:80]) <= 4
    assert CARRIED_RATIO * carried[45] < 0.5
    assert not any(missed[80:])
    assert carried[-1] == pytest.approx(1.0)


def test_policies_see_the_rein_alike() -> None:
    """A learned policy serves by Observer what it learned by VectorObserver: levels, use, and a memory per rein."""
    hosts = batch(SENDFILE.but(link_step_ratio=0.5, link_step_seconds=20.0), 0.3)
    one, many = Observer(hosts.limits, 1.0, LAGS), VectorObserver(hosts.limits, 1.0, LAGS)
    levels = np.random.default_rng(0).uniform(0.05, 1.0, 60)
    for second, level in enumerate(levels):
        hosts.apply([at(hosts, level)])
        hosts.step()
        current = Allocations.of(hosts.allocations)
        seen = (many.observe if second else many.begin)(hosts.read(), current)[0]
        observation = one.observe(hosts.telemetry()[0], hosts.allocations[0])
        np.testing.assert_array_equal(seen, observation.vector)
    assert hosts.hosts.rows["rein"] == LINK
    assert [experience.name for experience in one.experiences] == ["experience", "experience on the link"]


@pytest.mark.parametrize("name", REINED)
def test_frozen_be_holds_where_cpus_do_not(name: str) -> None:
    scenario = load_scenario(name)

    def held(allocation: Allocation, reins: bool) -> float:
        hosts = SimBatch(scenario.host(), [1], scenario.load_model, scenario.ticks, weight=scenario.be.weight)
        if not reins:
            hosts.keep_to_cpus()
        hosts.apply([allocation])
        held = [hosts.step() and hosts.truth().latency_ratio[0] <= 1.0 for _ in range(120)]
        return float(np.mean(held))

    limits = scenario.host().limits()
    assert held(limits.safe, reins=True) > 0.97
    assert held(limits.full, reins=False) < 0.6


def test_training_hosts_have_reins() -> None:
    kinds = {kind.name: kind for kind in load_hosts().kinds}
    reined = {name: kind.host() for name, kind in kinds.items() if kind.host().rein}
    assert {name: host.values()["rein"] for name, host in reined.items()} == {
        "link-rein": LINK, "link-rein-credits": LINK, "disk-rein": DISK, "link-or-cpu": LINK,
    }  # fmt: skip
    assert kinds["link-or-cpu"].weight is Weight.EQUAL
    assert sum(kinds[name].share for name in reined) / sum(kind.share for kind in kinds.values()) > 0.2


def test_levels_on_link_are_near_their_sweep() -> None:
    """At no level was the LC later than alone: the link's own law needs no constant that quotas did not show."""
    cells = read_surface(Path(__file__).resolve().parents[2] / "fixtures/surface/network-rein.csv")
    assert {cell.rein for cell in cells} == {Rein.LINK}
    agreed = agreement(residuals(cells, {"": load_profile("sendfile-link")}, MANY_SEEDS))
    assert min(agreed.within_percent, agreed.side_percent, agreed.be_percent, agreed.lc_percent) >= 90.0


def test_branch_of_hosts_keeps_their_rein() -> None:
    hosts, _ = held_by(SENDFILE, 0.3, 0.5)
    assert Hosts.branch_from(hosts.hosts).rows["rein"] == LINK
