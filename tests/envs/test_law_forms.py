"""Laws in machine code say what the interpreted ones say, to the bit, whatever a sensor or a policy gives them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlctl
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.sim_scenario import REINED
from rlctl.envs.actions import MOVES, apply_move
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.experience import TOLD, begin_host, book_window, filter_host, log_calm, periods_of, tell
from rlctl.envs.features import FRAME_SIZE, write_frame
from rlctl.envs.host.reins.carried_rate import (
    CARRIED,
    DISK_SHARES,
    LEAST_BYTES,
    LINK_SHARES,
    begin_rate,
    judge_window,
    see_window,
)
from rlctl.envs.law import compiled
from rlctl.envs.level_counts import (
    BINS,
    ENOUGH,
    HOST_MEMORY,
    TOP,
    UNKNOWN,
    add_held,
    add_missed,
    age_counts,
    bin_of,
    known_levels,
    level_of,
    look,
    write_anew,
)
from rlctl.envs.observation import told_price
from rlctl.envs.readings import READING
from rlctl.envs.reins import CPU, DISK, LINK, lc_goes_first, level_used, share_of_disk, share_of_link, weigh
from rlctl.envs.reward import judge_latency, reward_of
from rlctl.envs.rows import ALLOCATION, LIMIT, plain_row, row_of
from rlctl.envs.sim.elementary import cosine_and_sine, exponential, logarithm, power
from rlctl.envs.sim.noise import key_of, normal_pair, places, uniform
from rlctl.envs.sim.physics import CHANNELS, ORDER, PERIOD, WINDOW, Hosts, step_hosts
from rlctl.envs.sim.profile import Constants, load_profile
from rlctl.envs.sim.queueing import conditional_wait, delay_probability, sojourn_quantile
from rlctl.envs.sim.reins import HAND
from rlctl.envs.sim.sensing import Sensors, measure, read_sensor
from rlctl.envs.sim.sharing import contest_of, duty_of, fair_share, lc_wants, most_cpus, share_out

pytest.importorskip("numba")

ANY = st.one_of(st.floats(), st.floats(0.0, 3.0), st.sampled_from([0.0, 1.0, np.inf, -np.inf, np.nan, 1e300]))
SUMS = "held_above", "missed_below", "badly_below"
SHARE, FLAG = st.floats(0.0, 1.0), st.booleans()


LIMITS = Limits(8, 4.0)
PLACES, LEVELS = st.integers(0, BINS - 1), st.integers(0, TOP)
READINGS = st.fixed_dictionaries({name: FLAG if name == "lost" else ANY for name in READING.names})
ALLOCATIONS = st.builds(Allocation, st.floats(0.01, 8.0) | st.just(UNLIMITED), st.integers(1, 8), FLAG)
LOADS = st.floats(0.0, 1.5) | ANY
PERIODS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)
WINDOWS = st.tuples(LOADS, LOADS, LOADS, st.floats(0.0, 8.0), st.integers(-1, TOP), PERIODS)


def memory_rows():
    """A host's memory for each form: as Python has it, interpreted in a row, compiled."""
    rows = np.zeros(2, HOST_MEMORY)
    for row in (plain := plain_row(HOST_MEMORY), *rows):
        row["apart"] = True
        begin_host(row)
    return (plain, False), (rows[0], False), (rows[1], True)


def record(kind, numbers):
    """A row of a structured array with these numbers."""
    rows = np.zeros(1, kind)
    for name in kind.names:
        rows[name] = numbers[name]
    return rows[0]


def require_same_rows(rows):
    for name in HOST_MEMORY.names:
        one, *others = (np.asarray(row[name]) for row, _ in rows)
        for other in others:
            np.testing.assert_array_equal(one, other, name)


def require_same(law, *numbers):
    """The same numbers from both forms, NaN included."""
    np.testing.assert_array_equal(law(*numbers), compiled(law)(*numbers))


@given(st.integers(1, 200).flatmap(lambda cpus: st.tuples(st.just(cpus), st.integers(1, cpus))), ANY, SHARE, FLAG)
def test_moves(cpus, quota, least, frozen):
    for move in range(len(MOVES)):
        for quota_cpus in (quota, UNLIMITED, cpus[0] * least):
            require_same(apply_move, move, quota_cpus, cpus[1], frozen, cpus[0], least)


@given(ANY, ANY, FLAG)
def test_latency_over_target(latency, target, lost):
    require_same(judge_latency, latency, target, lost)


@given(ANY, ANY, FLAG, FLAG, ANY, FLAG)
def test_rewards(over, work_rate, changed, overridden, work, first):
    require_same(reward_of, over, work_rate, changed, overridden, work, first)


@given(ANY)
def test_bins_and_levels(number):
    require_same(bin_of, number)
    require_same(level_of, number)
    require_same(log_calm, number)
    require_same(told_price, number)


@given(ANY, ANY, st.sampled_from([0.1, 1.0, 2.0]))
def test_periods_of_latency(age, window, tick):
    require_same(periods_of, age, window, tick)


@given(READINGS, ALLOCATIONS, st.integers(0, 255))
def test_frames(reading, allocation, hidden):
    limit = row_of(LIMIT, LIMITS)
    rows = record(READING, reading), record(ALLOCATION, row_of(ALLOCATION, allocation)), record(LIMIT, limit)
    one, other = np.empty(FRAME_SIZE, np.float32), np.empty(FRAME_SIZE, np.float32)
    write_frame(*rows, 1.0, hidden, one)
    compiled(write_frame)(*rows, 1.0, hidden, other)
    np.testing.assert_array_equal(one, other)
    assert (np.abs(one) <= 1.0).all()


@given(st.lists(WINDOWS, max_size=30), st.floats(0.0, 4000.0), LOADS, LOADS, st.lists(FLAG, min_size=9, max_size=9))
def test_memory_of_host(windows, pause, load, ratio, mask):
    rows, told, left = memory_rows(), [], []
    levels, mask = np.arange(-1, 26, 3, dtype=np.int8), np.array(mask)
    for row, fast in rows:
        book, say, narrow = (compiled(one) if fast else one for one in (book_window, tell, filter_host))
        for second, (at, latency, used, usable, level, (last, first)) in enumerate(windows):
            now = float(second) + (pause if second > 10 else 0.0)
            book(row, now, at, latency, used, usable, level, first, last)
        told.append(np.zeros(TOLD, np.float32))
        left.append(np.zeros(len(mask), np.bool_))
        say(row, load, ratio, told[-1])
        narrow(row, levels, mask, left[-1], load, ratio, 1.0)
    require_same_rows(rows)
    assert all(np.array_equal(told[0], one) for one in told[1:])
    assert all(np.array_equal(left[0], one) for one in left[1:])
    assert left[0].any() == mask.any()


@given(st.lists(st.tuples(FLAG, PLACES, LEVELS, FLAG, FLAG), max_size=40), st.lists(st.floats(0.0, 1e5), max_size=5))
def test_sums_are_those_of_counts(windows, pauses):
    """Sums are kept along with counts: one that is off would bar a level, or free it."""
    rows = memory_rows()
    for row, fast in rows:
        hold, miss, age, sum_up = (
            compiled(one) if fast else one for one in (add_held, add_missed, age_counts, write_anew)
        )
        for held, place, level, badly, apart in windows:
            look(row, place)  # an answer that is kept must be the one that would be given
            hold(row, place, level) if held else miss(row, place, level, badly, apart)
            for other in range(BINS):
                if row["known"][other] != UNKNOWN:
                    assert (row["known"][other], row["bearable"][other]) == known_levels(row, other, ENOUGH)
        for pause in pauses:
            age(row, pause)
        sums = [np.array(row[name]) for name in SUMS]
        worth = [float(row[f"{name}_worth"]) for name in ("held", "missed", "badly")]
        sum_up(row)
        for name, one, each in zip(SUMS, sums, worth, strict=True):
            np.testing.assert_allclose(one * each, row[name], rtol=1e-5, atol=1e-5)
    require_same_rows(rows)


FILES = (Path(rlctl.__file__).parent / "configs/plants").glob("*.yaml")
PLANTS = {path.stem: load_profile(path.stem) for path in FILES} | {name: load_scenario(name).host() for name in REINED}
LOADED = st.floats(0.0, 3.0) | st.sampled_from([0.0, 1e-300, 1e12, 1e300, np.inf, -np.inf, np.nan])
ORDERS = st.tuples(st.floats(1e-9, 64.0) | st.sampled_from([np.inf, 1e-300, 1e300]), st.integers(1, 64), FLAG)
WEIGHTS = st.sampled_from([1.0, 0.002])
NUMBERS = st.floats(0.0, 1e3) | st.sampled_from([0.0, 1e-300, 1e300])
"""What an allocation, a load and a profile may say of a host: nothing of it is below 0 or no number."""


@pytest.mark.parametrize("name", sorted(PLANTS))
@given(st.integers(0, 2**62), st.lists(st.tuples(LOADED, ORDERS, WEIGHTS), min_size=1, max_size=8))
def test_hosts_of_every_profile(name, seed, periods):
    """Queue, backlog, sharing, link, reins, noise and sensors, period by period: the same rows from both forms."""
    constants = Constants.drawn(PLANTS[name], np.array([seed], np.uint64))
    both = [Hosts(constants, np.array([seed], np.uint64)) for _ in range(2)]
    sensors = [Sensors(one.constant_rows, 1.0) for one in both]
    for number, (load, order, weight) in enumerate(periods):
        rows = []
        for one, sensor, form in zip(both, sensors, (lambda law: law, compiled), strict=True):
            window, reading, c = np.zeros(1, WINDOW), np.zeros(1, READING), one.constant_rows[0]
            orders = np.array([(*order, weight)], ORDER)
            at, rates = places(number, CHANNELS), np.array([load * float(constants.max_load_rps[0])])
            with np.errstate(all="ignore"):  # machine code says nothing of an overflow
                periods = np.empty(1, PERIOD)
                form(step_hosts)(one.rows, one.constant_rows, orders, window, periods, at, rates, number, 1.0)
                form(measure)(sensor.rows[0], c, window[0], 1.0)
                form(read_sensor)(sensor.rows[0], c, window[0], reading[0], number + 1.0, 1.0)
            rows.append((one.rows, window, sensor.rows, reading))
        for one, other in zip(*rows, strict=True):
            for field in one.dtype.names:
                np.testing.assert_array_equal(one[field], other[field], field)


@given(LOADED, LOADED, LOADED, LOADED, st.sampled_from([CPU, LINK, DISK]), FLAG)
def test_levels_on_link(level, share, others, be, rein, least_weight):
    require_same(share_of_link, level, others)
    require_same(share_of_disk, level, others)
    require_same(level_used, level, share, others, be)
    require_same(lc_goes_first, float(rein), least_weight)


@given(
    st.lists(st.tuples(LOADED, LOADED, LOADED, FLAG, FLAG, st.sampled_from([0.5, 1.0])), max_size=40),
    st.sampled_from([LINK_SHARES, DISK_SHARES]),
)
def test_what_links_and_disks_carry(windows, shares):
    links = np.zeros(2, np.dtype(CARRIED))
    for link, fast in zip(links, (False, True), strict=True):
        begin, see, judge = (compiled(one) if fast else one for one in (begin_rate, see_window, judge_window))
        begin(link, LEAST_BYTES, True, *shares)
        for sent, be, allowed, missed, calm, ran in windows:
            see(link, 1e6 * sent, 5.0)
            judge(link, 1e6 * allowed, 1e6 * be, 1.0, missed, calm, ran)
    assert links[0] == links[1]


@given(st.lists(st.tuples(st.sampled_from([CPU, LINK, DISK]), FLAG, st.floats(0.0, 2000.0), FLAG), max_size=20))
def test_evidence_for_reins(misses):
    hands = np.zeros(2, np.dtype(HAND))
    for suspect, used, after, cut in misses:
        for hand, form in zip(hands, (weigh, compiled(weigh)), strict=True):
            form(hand, float(suspect), used, hand["seen_seconds"] + after, 1.0 + cut)
    assert hands[0] == hands[1]


@given(ANY, st.floats(0.0, 1.0), st.floats(-1e3, 1e3))
def test_elementary_functions(number, turns, exponent):
    require_same(exponential, number)
    require_same(logarithm, number)
    require_same(power, abs(number), exponent)
    require_same(cosine_and_sine, turns)


@given(st.integers(1, 200), st.floats(0.0, 2.0) | NUMBERS, NUMBERS, st.floats(0.0, 10.0), st.floats(0.0, 10.0))
def test_queues(servers, rho, service, ca2, cs2):
    require_same(delay_probability, float(servers), rho)
    require_same(conditional_wait, float(servers), rho, service, ca2, cs2)


@given(st.floats(0.01, 0.9999), SHARE, NUMBERS, st.floats(1e-9, 1e6), st.floats(0.0, 10.0))
def test_quantiles_of_waits(q, delayed, wait, service, cs2):
    require_same(sojourn_quantile, q, delayed, wait, service, cs2)


@given(NUMBERS, st.floats(1e-3, 1e3), NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_shares_of_cpus(weight, lc_cpus, spread, own, shared, threads, quota):
    require_same(fair_share, weight, lc_cpus, spread)
    require_same(lc_wants, own, shared, lc_cpus)
    require_same(duty_of, quota, spread)
    contests = [form(contest_of)(weight, lc_cpus, spread, own, shared, threads) for form in (lambda law: law, compiled)]
    np.testing.assert_array_equal(*contests)
    for contest in contests:
        require_same(most_cpus, contest, own, contest.fair)
    if contests[0].fair_equal < 1.0:
        require_same(share_out, contests[0], own, quota)


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.floats(2.0**-53, 1.0 - 2.0**-53), st.floats(0.0, 1.0))
def test_noise(seed, tick, one, other):
    at = places(tick, CHANNELS)[0]
    assert key_of(seed) == compiled(key_of)(np.uint64(seed))
    assert uniform(seed, int(at)) == compiled(uniform)(np.uint64(seed), at)
    require_same(normal_pair, one, other)
