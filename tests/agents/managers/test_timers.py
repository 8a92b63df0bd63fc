import math

import pytest

from rlctl.agents.managers.manager import Every


def fired(timer: Every, times: list[float]) -> list[int]:
    return [timer.due(now) for now in times]


def test_a_slow_loop_fires_every_so_many_ticks() -> None:
    assert fired(Every(2.0), [0.0, 1.0, 2.0, 3.0, 4.0]) == [1, 0, 1, 0, 1]


def test_fast_loop_fires_several_times_a_tick() -> None:
    # 2 s / 15 = 0.1333 s: 7.5 a tick, so 450 in 60 ticks after the first.
    assert sum(fired(Every(2.0 / 15.0), [float(now) for now in range(61)])) == 451


def test_jitter_of_live_host_neither_skips_nor_drifts() -> None:
    times = [now + (0.004 if now % 2 else -0.004) + 1.0 for now in range(0, 60, 1)]
    assert sum(fired(Every(2.0), times)) == 30


def test_rest_delays_next_firing_to_its_very_end() -> None:
    timer = Every(15.0)
    timer.due(0.0)
    timer.rest(0.0, 300.0)
    assert [now for now in range(1, 331) if timer.due(float(now))] == [300, 315, 330]


def test_a_stalled_daemon_does_not_catch_up() -> None:
    assert fired(Every(2.0), [0.0, 1.0, 61.0, 62.0, 63.0]) == [1, 0, 1, 0, 1]


def test_clock_set_back_keeps_time_that_is_left() -> None:
    timer = Every(300.0)
    timer.due(1000.0)
    assert fired(timer, [1005.0, 5.0, 295.0]) == [0, 0, 0]  # 295 s were left at 5
    assert timer.due(300.0) == 1


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_a_clock_that_is_no_number_fires_nothing(now: float) -> None:
    timer = Every(2.0)
    assert fired(timer, [0.0, now, 2.0]) == [1, 0, 1]


@pytest.mark.parametrize("period", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_period_is_refused(period: float) -> None:
    with pytest.raises(ValueError, match="not positive"):
        Every(period)


def test_reset_fires_at_once() -> None:
    timer = Every(100.0)
    timer.due(0.0)
    timer.reset()
    assert timer.due(1.0) == 1


def test_a_tick_of_fifteen_seconds_is_no_gap():
    """The rate per second stays as published, once two ticks have been as long: one might be a gap."""
    assert fired(Every(2.0), [0.0, 15.0, 30.0, 45.0, 60.0]) == [1, 1, 1, 7, 8]
    assert fired(Every(2.0), [0.0, 15.0, 30.0, 45.0, 300.0])[-1] == 1
    assert fired(Every(2.0), [0.0, 1.0, 61.0, 101.0])[-2:] == [1, 1], "two stalls in a row"
