import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.managers.heracles import Heracles
from rlctl.agents.managers.heracles_loops import Bandwidth, be_link_ratio
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Telemetry, Value

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]


def test_begins_with_one_core_and_grows_steadily(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    got = drive(Heracles(), thesis_host, [tell(now, slack=0.5, load_ratio=0.5) for now in range(5)])
    assert Heracles().start(thesis_host) == Allocation(1.0, 1)
    assert got == [Allocation(float(n), n) for n in (2, 2, 3, 3, 4)]


def test_growth_needs_slack_at_the_core_loop_too(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=0.5 if now < 4 else 0.10, load_ratio=0.5) for now in range(14)]
    assert drive(Heracles(), thesis_host, ticks)[-1].cpuset_cpus == 3  # at 0 and 2 s; none between 4 and 14


def test_a_tiny_slack_leaves_two_cores(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # A core at 0, 2, ..., 14 s makes 9 by the poll at 15 s, which takes away 9 - 2.
    ticks = [tell(now, slack=0.5 if now < 15 else 0.04, load_ratio=0.5) for now in range(20)]
    got = drive(Heracles(), thesis_host, ticks)
    assert got[14].cpuset_cpus == 9
    assert {a.cpuset_cpus for a in got[15:]} == {2}


def test_removing_never_adds(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    assert drive(Heracles(), thesis_host, [tell(0, slack=0.01, load_ratio=0.5)])[0] == Allocation(1.0, 1)


@pytest.mark.parametrize("slack", [0.05, 0.099])
def test_a_small_slack_holds(drive: Drive, tell: Tell, thesis_host: Limits, slack: float) -> None:
    ticks = [tell(now, slack=0.5 if now < 15 else slack, load_ratio=0.5) for now in range(40)]
    assert drive(Heracles(), thesis_host, ticks)[-1].cpuset_cpus == 9


def test_load_gates_and_return_to_the_first_core(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    loads = [0.5, 0.86, 0.82, 0.79]
    ticks = [tell(now, slack=0.5, load_ratio=loads[now // 15]) for now in range(46)]
    got = drive(Heracles(), thesis_host, ticks)
    assert [a.frozen for a in got[::15]] == [False, True, True, False]
    assert got[45].quota_cpus == 1.0  # re-enabled with the first core
    assert drive(Heracles(), thesis_host, [*ticks, tell(46, slack=0.5, load_ratio=0.5)])[-1].quota_cpus == 2.0


def test_the_cool_down_lasts_exactly(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=-0.1 if now == 15 else 0.5, load_ratio=0.5) for now in range(330)]
    got = drive(Heracles(), thesis_host, ticks)
    assert [now for now, a in enumerate(got) if a.frozen] == list(range(15, 315))


def test_missing_readings_neither_enable_nor_grow(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    assert drive(Heracles(), thesis_host, [tell(t) for t in range(20)])[-1] == Allocation(1.0, 1)
    assert drive(Heracles(), thesis_host, [tell(0, load_ratio=0.9)])[-1].frozen


def test_small_hosts_cores_are_quota_first(drive: Drive, tell: Tell) -> None:
    # Two CPUs stand for 36 cores: 16 cores are 0.89 CPU on the safest CPU, 20 are 1.11 CPU on both.
    policy = Heracles(core_cpus=2 / 36)
    got = drive(policy, Limits(cpus=2), [tell(now, slack=0.5, load_ratio=0.5) for now in range(80)])
    sizes = {
        policy_cores: (round(a.quota_cpus, 2), a.cpuset_cpus)
        for policy_cores, a in zip(range(2, 37), got[::2], strict=False)
    }
    assert sizes[16] == (0.89, 1)
    assert sizes[18] == (1.0, 1)
    assert sizes[20] == (1.11, 2)
    assert got[-1] == Allocation(2.0, 2)


class TestWhatIsMeasured:
    """The loops that the paper has beside latency and load, where the counters offer their readings."""

    @staticmethod
    def ticks(tell: Tell, *counters: dict[str, float]) -> list[Telemetry]:
        """Seconds 0, 2, 4, ... of ample slack and low load: without a counter BE has 2, 3, 4, ... cores."""
        return [
            tell(2.0 * index, slack=0.5, load_ratio=0.5).but(counters={name: Value(now) for name, now in known.items()})
            for index, known in enumerate(counters)
        ]

    @staticmethod
    def dram(total: float, be: float) -> dict[str, float]:
        return {"dram_bandwidth_ratio": total, "be_dram_bandwidth_ratio": be}

    def cores(self, drive: Drive, tell: Tell, host: Limits, *counters: dict[str, float]) -> list[int]:
        return [a.cpuset_cpus for a in drive(Heracles(), host, self.ticks(tell, *counters))]

    def test_the_overage_is_taken_in_cores(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        # 7 cores use 0.35, 0.05 each; 0.12 over the limit are 2.4 of them, so 3 are taken.
        calm, over = self.dram(0.5, 0.1), self.dram(1.02, 0.35)
        assert self.cores(drive, tell, thesis_host, *[calm] * 6, over) == [2, 3, 4, 5, 6, 7, 4]

    def test_a_core_must_fit_below_the_limit(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        calm = self.dram(0.5, 0.1)
        fits, does_not = self.dram(0.85, 0.10), self.dram(0.86, 0.10)  # 2 cores of 0.05
        assert self.cores(drive, tell, thesis_host, calm, does_not, fits) == [2, 2, 3]

    def test_a_fast_loop_adds_what_fits(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        # 15 steps in 2 s; at 0.70 of 0.90 four of BE's cores of 0.05 fit.
        ticks = self.ticks(tell, self.dram(0.5, 0.1), self.dram(0.70, 0.10))
        assert drive(Heracles(time_scale=15.0), thesis_host, ticks)[-1].cpuset_cpus == 6

    def test_lc_alone_above_limit_only_stops_growth(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        assert self.cores(drive, tell, thesis_host, *[self.dram(0.95, 0.0)] * 3) == [1, 1, 1]

    def test_the_last_core_is_the_top_level_loops(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        assert self.cores(drive, tell, thesis_host, *[self.dram(1.5, 0.2)] * 3) == [1, 1, 1]

    def test_power_takes_a_core_a_period(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        calm = {"power_ratio": 0.90, "lc_frequency_ratio": 0.9}
        free = {"power_ratio": 0.95, "lc_frequency_ratio": 1.0}
        short = {"power_ratio": 0.95, "lc_frequency_ratio": 0.9}
        got = self.cores(drive, tell, thesis_host, calm, free, calm, short, short, calm)
        assert got == [2, 3, 4, 3, 2, 3]

    def test_link_is_for_whoever_can_hold_be_there(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        policy = Heracles()
        drive(policy, thesis_host, self.ticks(tell, {"link_ratio": 0.9, "lc_link_ratio": 0.6}))
        assert policy.be_cores == 2
        assert "BE sends 30% of the link, may send 34%" in policy.note  # 1 - 0.6 - 0.06
        drive(policy, thesis_host, self.ticks(tell, {"link_ratio": 0.9, "lc_link_ratio": 0.2}))
        assert "may send 75%" in policy.note  # 1 - 0.2 - 0.05
        assert "network ceiling" in policy.remarks[0]
        assert be_link_ratio({}) is None
        counters = {"link_ratio": Value(0.9), "lc_link_ratio": Value(0.6)}
        assert be_link_ratio(counters) == pytest.approx(0.34)
        assert be_link_ratio({**counters, "lc_link_ratio": Value(1.2)}) == 0.0

    @pytest.mark.parametrize(
        "half", ["dram_bandwidth_ratio", "be_dram_bandwidth_ratio", "power_ratio", "lc_frequency_ratio", "link_ratio"]
    )
    @pytest.mark.parametrize("value", [0.99, math.nan, math.inf, -1.0])
    def test_half_of_a_loops_readings_is_none(
        self, drive: Drive, tell: Tell, thesis_host: Limits, half: str, value: float
    ) -> None:
        policy, core = Heracles(), Heracles()
        got = drive(policy, thesis_host, self.ticks(tell, *[{half: value}] * 9))
        assert got == drive(core, thesis_host, self.ticks(tell, *[{}] * 9))
        assert (policy.note, policy.remarks) == (core.note, core.remarks)

    def test_says_what_was_measured(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        policy = Heracles()
        drive(policy, thesis_host, self.ticks(tell, {**self.dram(0.5, 0.1), "link_ratio": 0.5, "lc_link_ratio": 0.2}))
        assert "memory-bandwidth limit" in policy.remarks[0]
        assert "no readings of power" in policy.remarks[0]
        policy.start(thesis_host)
        assert "core part only" in policy.remarks[0]


@given(*[st.floats(0.0, allow_infinity=False)] * 2, st.integers(1, 64), st.integers(0, 30))
def test_any_bandwidth_gives_whole_cores_within_bounds(total: float, be: float, cores: int, most: int) -> None:
    bandwidth = Bandwidth(total, be)
    assert 0 <= bandwidth.cores_over(0.9, cores) <= cores
    assert 0 <= bandwidth.cores_below(0.9, cores, most) <= most
