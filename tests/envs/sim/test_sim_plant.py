"""The simulated host as a Plant: late and missing readings, repeatable runs, batches, and errors in profiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.plant import SimBatch, SimPlant
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.envs.workload import Weight

PROFILE = load_profile("thesis-host")
TICKS = 30


def staircase(seed: int, ticks: int, tick_seconds: float) -> NDArray[np.float64]:
    """Another load for each seed, so that mixing hosts up would show."""
    return 0.5 + 0.4 * np.modf((np.arange(ticks) + seed) / 7)[0]


def plant(seed: int = 0, vary: bool = False, profile: HostProfile = PROFILE) -> SimPlant:
    return SimPlant(profile, staircase, TICKS, seed=seed, vary=vary)


def told(one: SimPlant, ticks: int = 10) -> list[Telemetry]:
    """A run in which BE's allocation changes at every tick."""
    seen = []
    for tick in range(ticks):
        one.apply(Allocation(0.5 + tick % 5, 1 + tick % 9, tick % 4 == 0))
        one.wait()
        seen.append(one.read())
    return seen


def test_before_the_first_period_nothing_has_arrived() -> None:
    telemetry = plant().read()
    assert telemetry.time_seconds == 0.0
    assert isinstance(telemetry.latency_seconds, Missing)
    assert telemetry.slack_ratio is None


def test_readings_are_fresh_where_nothing_delays_them() -> None:
    telemetry = told(plant())[-1]
    tail = telemetry.tail_latency_seconds
    assert isinstance(tail, Quantile)
    assert (tail.age_seconds, tail.window_seconds) == (0.0, 1.0)
    assert tail.samples > 100_000
    assert telemetry.load_ratio.age_seconds == 0.0


@pytest.mark.parametrize("delay", [1, 3])
def test_late_sensor_tells_of_past_with_its_age(delay: int) -> None:
    """What arrives is what a punctual sensor said `delay` ticks before; until then there is no data."""
    late, punctual = told(plant(profile=PROFILE.but(delay_ticks=delay))), told(plant())
    for tick, telemetry in enumerate(late):
        tail = telemetry.tail_latency_seconds
        if tick < delay:
            assert tail == Missing(Why.NO_DATA, tail.detail, np.inf)  # type: ignore[union-attr]
            continue
        earlier = punctual[tick - delay].tail_latency_seconds
        assert isinstance(tail, Quantile)
        assert isinstance(earlier, Quantile)
        assert (tail.value, tail.age_seconds) == (earlier.value, float(delay))
        assert telemetry.be_cpus == punctual[tick].be_cpus  # the host measures itself, at once


def test_missing_window_says_so_and_its_age_grows() -> None:
    seen = told(plant(seed=1, profile=PROFILE.but(missing_ratio=0.7)), ticks=TICKS)
    age = np.inf
    lost = 0
    for telemetry in seen:
        reading = telemetry.tail_latency_seconds
        if isinstance(reading, Missing):
            lost += 1
            assert reading.why is Why.NO_DATA
            assert reading.age_seconds == age + 1.0
            assert isinstance(telemetry.load_ratio, Missing)
            assert isinstance(telemetry.be_cpus, Value)
        age = reading.age_seconds
    assert TICKS / 3 < lost < TICKS


def test_without_requests_there_is_no_quantile() -> None:
    idle = SimPlant(PROFILE, lambda seed, ticks, seconds: np.zeros(ticks))
    idle.wait()
    assert isinstance(idle.read().tail_latency_seconds, Missing)


@pytest.mark.parametrize("vary", [False, True])
def test_a_seed_is_a_run_number_for_number(vary: bool) -> None:
    profile = HostProfile.model_validate(PROFILE.model_dump() | {"ranges": {"cpi": (0.8, 1.2)}})
    one = plant(5, vary, profile)
    first = told(one)
    told(one)
    one.reset(5)
    assert told(one) == first == told(plant(5, vary, profile))
    one.reset(6)
    assert told(one) != first


def test_a_reset_keeps_the_weight() -> None:
    one, never = plant(), plant()
    one.set_weight(Weight.MINIMUM)
    one.reset(0)
    one.apply(one.limits.full)
    never.apply(never.limits.full)
    for each in (one, never):
        each.wait()
    assert one.read().tail_latency_seconds.value < never.read().tail_latency_seconds.value  # type: ignore[union-attr]


@pytest.mark.parametrize("vary", [False, True])
def test_rows_of_a_batch_are_plants(vary: bool) -> None:
    profile = HostProfile.model_validate(PROFILE.model_dump() | {"ranges": {"service_seconds": (2e-5, 3e-5)}})
    seeds = [4, 0, 9, 4]
    batch = SimBatch(profile, seeds, staircase, TICKS, vary=vary)
    plants = [plant(seed, vary, profile) for seed in seeds]
    for tick in range(10):
        asked = [Allocation(1.0 + place, 1 + (tick + place) % 18, tick == 5) for place in range(len(seeds))]
        batch.apply(asked)
        batch.step()
        for one, allocation in zip(plants, asked, strict=True):
            one.apply(allocation)
            one.wait()
        assert batch.telemetry() == [one.read() for one in plants]


def test_a_load_longer_than_the_run_repeats() -> None:
    one = plant()
    loads = [told(one, 1)[0].load_ratio.value for _ in range(2 * TICKS)]  # type: ignore[union-attr]
    assert loads[:TICKS] == pytest.approx(loads[TICKS:], rel=0.1)


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    said = str(error.value)
    assert "\n" not in said
    return said


def written(folder: Path, text: str, instead: str) -> Path:
    path = folder / "mine.yaml"
    shipped = Path(str(Path(__file__).parents[3] / "configs/plants/thesis-host.yaml")).read_text()
    assert text in shipped
    path.write_text(shipped.replace(text, instead))
    return path


def test_misspelt_key_is_named_with_the_right_one(tmp_path: Path) -> None:
    path = written(tmp_path, "target_seconds", "target_second")
    line = next(n for n, row in enumerate(path.read_text().splitlines(), 1) if "target_second" in row)
    with pytest.raises(ConfigError) as error:
        load_profile(str(path))
    assert f"mine.yaml:{line}: unknown key 'lc.target_second'; did you mean 'target_seconds'?" in one_line(error)


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ("ranges: {wings: [1, 2]}", "there is no constant 'wings'"),
        ("ranges: {cpi: [2, 1]}", "cpi: 2 is above 1"),
        ("ranges: {cpi: [-1, 1]}", "cpi"),
    ],
)
def test_a_bad_range_is_one_clear_line(tmp_path: Path, ranges: str, says: str) -> None:
    path = written(tmp_path, "ranges:", f"{ranges}\nunused:")
    path.write_text(path.read_text().partition("unused:")[0])
    with pytest.raises(ConfigError) as error:
        load_profile(str(path))
    assert says in one_line(error)


@pytest.mark.parametrize("value", ["-1", ".nan", ".inf", "many"])
def test_an_impossible_constant_is_one_clear_line(tmp_path: Path, value: str) -> None:
    path = written(tmp_path, "lc_cpus: 17", f"lc_cpus: {value}")
    with pytest.raises(ConfigError) as error:
        load_profile(str(path))
    assert "lc_cpus" in one_line(error)


def test_impossible_change_of_a_constant() -> None:
    with pytest.raises(ConfigError, match="there is no constant 'wings'") as error:
        PROFILE.but(wings=2.0)
    one_line(error)
    with pytest.raises(ConfigError, match="lc_cpus") as error:
        PROFILE.but(lc_cpus=-1.0)
    one_line(error)


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no host profile 'thesis', nor is it a .yaml file; .*thesis-host") as error:
        load_profile("thesis")
    one_line(error)
