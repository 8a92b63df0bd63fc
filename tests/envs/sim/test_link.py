"""A link that LC and BE share: what holds whatever its constants are, and how near the shipped one is to the sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.training.host_kinds import HostShare, load_hosts
from rlctl.bench.scenarios import load_scenario
from rlctl.commands.calibrate import write_profile
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.link import link_rate, queue_seconds
from rlctl.envs.sim.physics import HostOrders, Hosts, Window
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import Constants, HostProfile, load_profile
from rlctl.envs.sim.residuals import MANY_SEEDS, Regime, against_itself, agreement, residuals
from rlctl.envs.sim.seeds import evaluation
from rlctl.envs.sim.surface import read_surface
from rlctl.envs.workload import Weight

SURFACES = Path(__file__).resolve().parents[2] / "fixtures/surface"
LINK = load_profile("capped-link")
PLAIN = load_profile("two-core-nginx")
SEEDS = st.integers(0, 2**64 - 1)
LOADS = st.floats(0.0, 1.6)
QUOTAS = st.floats(0.01, 2.0)
DEPTHS = st.floats(0.0, 1e6)
REINED = "link-rein", "link-rein-credits", "disk-rein", "link-or-cpu"
"""Kinds of training hosts whose link or disk may move BE's level."""


@st.composite
def links(draw: st.DrawFn) -> HostProfile:
    """Any link, with any of its schedules, on a host whose CPU time is measured."""
    rate = draw(st.floats(1e6, 1e9))
    return LINK.but(
        link_bytes_per_second=rate,
        link_lc_bytes=draw(st.floats(0.0, 1e5)),
        link_be_bytes=draw(st.floats(0.0, 1e9)),
        link_lc_ratio=draw(st.floats(0.01, 1.0)),
        link_batch_ratio=draw(st.sampled_from([0.1, 1.0])),
        link_be_cv=draw(st.sampled_from([0.0, 0.2])),
        link_burst_bytes=draw(st.floats(1.0, 1e6)),
        link_bucket_bytes=draw(DEPTHS),
        link_queue_bytes=draw(st.floats(1e3, 1e8)),
        link_step_ratio=draw(st.floats(0.1, 2.0)),
        link_step_seconds=draw(st.sampled_from([1.0, 2.0, 60.0])),
        link_base_ratio=draw(st.floats(0.1, 1.0)),
        link_credit_bytes=draw(st.sampled_from([0.0, rate])),
        freeze_seconds=0.0,
    )


def order(quota: float, frozen: bool = False, count: int = 1) -> HostOrders:
    return HostOrders(np.full(count, quota), np.ones(count), np.full(count, frozen), np.full(count, 2 / 1024))


def rate_now(hosts: Hosts) -> float:
    """Bytes per second that the first host's link takes in the next period."""
    host, c = hosts.rows[0], hosts.constant_rows[0]
    return link_rate(c, hosts.tick * hosts.tick_seconds, hosts.tick_seconds, host["credit_bytes"])


def made(*profiles: HostProfile, seed: int = 0) -> Hosts:
    return Hosts(Constants.stack(profiles), np.full(len(profiles), seed, np.uint64))


def rate_of(profile: HostProfile, load: float) -> np.ndarray:
    return np.array([load * profile.lc.max_load_rps])


def columns(window: Window) -> dict[str, Any]:
    return {name: window.rows[name] for name in window.rows.dtype.names}


def constant(load: float) -> Any:
    return lambda seed, ticks, seconds: np.full(ticks, load)


@given(links(), SEEDS, LOADS, QUOTAS, QUOTAS)
def test_more_quota_never_lowers_tail_nor_work(
    profile: HostProfile, seed: int, load: float, quota: float, more: float
) -> None:
    less, much = (made(profile, seed=seed).step(rate_of(profile, load), order(some)) for some in (quota, quota + more))
    assert much.tail_latency_seconds >= less.tail_latency_seconds * (1.0 - 1e-9)
    assert much.be_work_ratio >= less.be_work_ratio - 1e-9


@given(links(), SEEDS, LOADS, QUOTAS, st.floats(1.0, 20.0))
def test_a_faster_link_never_raises_the_tail(
    profile: HostProfile, seed: int, load: float, quota: float, times: float
) -> None:
    """BE's work may fall: an LC that no longer waits for the link takes CPU time that was BE's."""
    assert profile.link
    fast = profile.but(link_bytes_per_second=profile.link.link_bytes_per_second * times)
    slow, better = (made(one, seed=seed).step(rate_of(one, load), order(quota)) for one in (profile, fast))
    assert better.latency_seconds <= slow.latency_seconds * (1.0 + 1e-9)


@given(links(), SEEDS, st.floats(1.0, 1.6), st.floats(0.05, 0.95))
def test_full_link_leaves_lc_its_part(profile: HostProfile, seed: int, load: float, part: float) -> None:
    constant = {"link_base_ratio": 1.0, "link_bytes_per_second": 1e6}
    full = profile.but(link_lc_ratio=part, link_be_bytes=1e12, link_lc_bytes=1e5, **constant)
    window = made(full, seed=seed).step(rate_of(full, load), order(1.0))
    request = 1e5 * full.values()["link_batch_ratio"]
    assert window.done_rps == pytest.approx(min(part * 1e6 / request, float(window.offered_rps[0])))


def test_lc_that_saves_bytes_keeps_up() -> None:
    """At 50 % PostgreSQL's commits took 60 ms each, and all of them went through."""
    disk = load_profile("capped-disk").but(link_be_cv=0.0)
    steady = [made(disk.but(link_batch_ratio=ratio)) for ratio in (disk.values()["link_batch_ratio"], 1.0)]
    for _ in range(5):
        grouped, single = (hosts.step(np.array([2100.0]), order(0.5)) for hosts in steady)
    assert 0.03 < grouped.latency_seconds < 0.13
    assert grouped.done_rps == pytest.approx(grouped.offered_rps)
    assert single.latency_seconds > 0.5


def test_cell_is_simulated_as_long_as_swept() -> None:
    """A backlog grows, so what a median of windows shows follows their number."""
    (cell,) = (one for one in read_surface(SURFACES / "disk-three.csv") if str(one).startswith("postgres 660 rps, no"))
    assert (len(cell.windows), cell.settled_windows) == (15, 5)
    short = replace(cell, windows=tuple(one for place, one in enumerate(cell.windows) if place % 5 < 3))
    whole, part = residuals([cell, short], {"": load_profile("capped-disk")})
    assert whole.tail_latency_seconds - part.tail_latency_seconds > 0.5


@given(links(), SEEDS, LOADS, QUOTAS)
def test_delay_is_bounded_link_keeps_its_rate(profile: HostProfile, seed: int, load: float, quota: float) -> None:
    quiet = profile.but(tail_cv=0.0)
    hosts, bare = made(quiet, seed=seed), made(quiet.model_copy(update={"link": None}), seed=seed)
    for _ in range(3):
        rate, queued = rate_now(hosts), hosts.waiting_requests
        window, alone = (one.step(rate_of(profile, load), order(quota)) for one in (hosts, bare))
        assert all(np.isfinite(column).all() for column in columns(window).values())
        added = window.tail_latency_seconds - alone.tail_latency_seconds
        if queued == hosts.waiting_requests == 0.0 and alone.offered_rps > 100.0:  # the LC's own backlog has no bound
            noise = np.exp(6.0 * np.sqrt(2.1 / alone.offered_rps))  # of a sample's quantile
            assert added <= hosts.constants.link_queue_bytes / rate * noise + 1e-9
        sent = window.be_work_ratio * hosts.constant_rows["solo_cpus"] * hosts.constants.link_be_bytes
        least = window.done_rps * hosts.constants.link_lc_bytes * hosts.constants.link_batch_ratio
        assert sent <= np.maximum(rate - least, 0.0) * (1.0 + 1e-9) + 1e-3
        assert 0.0 <= hosts.rows["credit_bytes"] <= hosts.constants.link_credit_bytes


@given(links(), st.sampled_from([0.5, 0.95, 0.99]), st.floats(0.0, 1e9), st.floats(0.0, 1e9), st.floats(1e5, 1e9))
def test_reply_waits_for_a_full_queue_at_most(
    profile: HostProfile, q: float, lc: float, be: float, rate: float
) -> None:
    c = made(profile).constant_rows[0]
    assert 0.0 <= queue_seconds(q, c, lc, be, rate) <= c["link_queue_bytes"] / rate * (1.0 + 1e-9)


@given(st.lists(links(), min_size=1, max_size=3), SEEDS, st.lists(st.tuples(LOADS, QUOTAS), min_size=1, max_size=5))
def test_linked_batch_is_its_hosts_one_by_one(
    profiles: list[HostProfile], seed: int, run: list[tuple[float, float]]
) -> None:
    profiles = [*profiles, PLAIN]
    together, alone = made(*profiles, seed=seed), [made(profile, seed=seed) for profile in profiles]
    for load, quota in run:
        batch = columns(together.step(np.full(len(profiles), load * 500.0), order(quota, count=len(profiles))))
        for place, host in enumerate(alone):
            single = columns(host.step(np.array([load * 500.0]), order(quota)))
            assert all(batch[name][place] == single[name][0] for name in batch)


@pytest.mark.parametrize("schedule", [{}, {"link_step_ratio": 0.5, "link_step_seconds": 3.0}, {"link_base_ratio": 0.6}])
def test_vector_environment_is_single_one_number_for_number(schedule: dict[str, float]) -> None:
    profile = LINK.but(**schedule, link_credit_bytes=30e6)
    many = gym.make_vec("rlctl/SimHost-v0", num_envs=3, max_episode_steps=14, profile=profile, weight=Weight.MINIMUM)
    singles = [gym.make("rlctl/SimHost-v0", profile=profile, weight=Weight.MINIMUM) for _ in range(3)]
    rows, _ = many.reset(seed=7)
    assert all((one.reset(seed=7 + place)[0] == rows[place]).all() for place, one in enumerate(singles))
    moves = np.random.default_rng(0).integers(many.single_action_space.n, size=(12, 3))  # type: ignore[attr-defined]
    for row in moves:
        observed, reward, *_ = many.step(row)
        for place, one in enumerate(singles):
            seen, gained, *_ = one.step(row[place])
            assert (seen == observed[place]).all()
            assert gained == reward[place]


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_the_rate_steps_in_every_second_stretch(ratio: float) -> None:
    hosts = made(LINK.but(link_step_ratio=ratio, link_step_seconds=2.0))
    rates = []
    for _ in range(6):
        rates.append(rate_now(hosts))
        hosts.step(rate_of(LINK, 0.3), order(0.2))
    assert rates == [37.5e6, 37.5e6, ratio * 37.5e6, ratio * 37.5e6, 37.5e6, 37.5e6]


def test_credits_run_out_and_refill() -> None:
    hosts = made(LINK.but(link_base_ratio=0.5, link_credit_bytes=40e6))

    def passed(ticks: int, frozen: bool) -> list[float]:
        rates = []
        for _ in range(ticks):
            rates.append(rate_now(hosts) / 37.5e6)
            hosts.step(rate_of(LINK, 0.3), order(1.0, frozen))
        return rates

    spent = passed(5, frozen=False)
    assert spent[:2] == [1.0, 1.0], "40 MB last for two seconds at 18.75 MB beyond the base rate"
    assert spent[-1] == 0.5
    assert passed(10, frozen=True)[-1] == 1.0
    assert hosts.rows["credit_bytes"] == 40e6


def test_branched_trial_leaves_the_hosts_credits() -> None:
    hosts = made(*[LINK.but(link_base_ratio=0.5, link_credit_bytes=40e6)] * 2)
    branch = Hosts.branch_from(hosts)
    branch.step(rate_of(LINK, 0.3), order(1.0))
    assert (hosts.rows["credit_bytes"] == 40e6).all()
    assert (branch.rows["credit_bytes"] < 40e6).all()


@pytest.mark.parametrize(
    "name", ["capped-link", "capped-disk", pytest.param("capped-link-credits", marks=pytest.mark.slow)]
)
def test_weights_do_not_hold_shipped_scenarios(name: str) -> None:
    scenario = load_scenario(name)

    def held(quota: float, frozen: bool) -> float:
        batch = SimBatch(scenario.host(), [evaluation(0)], scenario.load_model, scenario.ticks, weight=Weight.MINIMUM)
        batch.apply([batch.limits.full.but(quota_cpus=quota, frozen=frozen)])
        target = scenario.host().lc.target_seconds
        return float(np.mean([batch.step().latency_seconds <= target for _ in range(scenario.ticks)]))

    assert held(1.0, frozen=False) < 0.6
    assert held(1.0, frozen=True) > 0.97


def test_smaller_quota_holds_where_larger_one_does_not() -> None:
    """At 1680 requests a second, as measured: 20 % hold 10 ms and 75 % do not."""
    tails = {}
    for quota in (0.2, 0.75):
        batch = SimBatch(LINK, [1], constant(0.6), 50, weight=Weight.MINIMUM)
        batch.apply([batch.limits.full.but(quota_cpus=quota)])
        tails[quota] = np.median([batch.step().latency_seconds for _ in range(50)])
    assert tails[0.2] < LINK.lc.target_seconds < 50 * LINK.lc.target_seconds < tails[0.75]


@pytest.mark.parametrize(
    ("file", "name", "within"),
    [
        ("network.csv", "capped-link", 75.0),
        ("network-three.csv", "capped-link", 83.0),
        ("disk-three.csv", "capped-disk", 94.0),
    ],
)
def test_shipped_profiles_are_near_their_sweeps(file: str, name: str, within: float) -> None:
    found = residuals(read_surface(SURFACES / file), {"": load_profile(name)}, MANY_SEEDS)
    agreed = agreement(found)
    assert agreed.within_percent >= within
    assert agreed.side_percent >= 93.0
    assert min(agreed.be_percent, agreed.lc_percent) >= 90.0
    assert {one.regime for one in found} == {Regime.ALONE, Regime.LINK, Regime.LINK_FULL}


def test_repeated_measurement_is_held_against_itself() -> None:
    """What a model misses may be what the host did from one sweep to the next."""
    repeated = against_itself(read_surface(SURFACES / "network.csv"), 0.010)
    assert repeated is not None
    assert repeated == (41, pytest.approx(65.9, abs=0.1), 100.0)
    three = against_itself(read_surface(SURFACES / "network-three.csv"), 0.010)
    assert three == (42, pytest.approx(83.3, abs=0.1), 100.0)
    assert against_itself(read_surface(SURFACES / "disk.csv"), 0.010) is None


def test_host_without_link_has_no_constants_of_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no constant 'link_base_ratio'"):
        PLAIN.but(link_base_ratio=0.5)
    write_profile(PLAIN, tmp_path / "plain.yaml")
    assert "link" not in (tmp_path / "plain.yaml").read_text()
    assert load_profile(str(tmp_path / "plain.yaml")).digest == PLAIN.digest == "d636bda8bde7", "stands in results"
    write_profile(LINK, tmp_path / "linked.yaml")
    assert load_profile(str(tmp_path / "linked.yaml")) == LINK


def test_training_hosts_draw_their_links_from_ranges() -> None:
    linked = {kind.name: kind for kind in load_hosts().kinds if kind.host().link}
    assert list(linked) == ["link", "link-credits", "disk", *REINED]
    kind = linked["link"]
    drawn = Constants.drawn(kind.host(), np.arange(200, dtype=np.uint64))
    for name, low, high in (("link_step_ratio", 0.4, 1.0), ("link_bytes_per_second", 26e6, 49e6)):
        column = getattr(drawn, name)
        assert low <= column.min() < column.max() <= high
        assert len(np.unique(column)) > 150
    env = HostShare.of(kind, 2, load_hosts()).simulated((1, 0))
    assert env.reset(seed=0)[0].shape[0] == 2
