"""The law that chooses the rein: by what the LC waits for beside a BE that uses it, and without flapping."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.reins import (
    EVIDENCE,
    KEEP_SECONDS,
    LINK_CARRIED,
    LINK_SENT,
    MEMORY_SECONDS,
    USE,
    Rein,
    ReinLaw,
    level_ratio,
    on_cpus,
)
from rlctl.envs.telemetry import LC_LINK, Quantile, Telemetry, Value

LIMITS = Limits(cpus=4)
SOME = Allocation(2.0, 4)
ON_DISK = {"lc_io_pressure_ratio": Value(0.5), USE[Rein.DISK]: Value(0.9)}
ON_LINK = {LINK_SENT: Value(0.95), USE[Rein.LINK]: Value(0.8)}
ON_CPU = {"lc_pressure_ratio": Value(0.4)}
BEHIND = {Rein.CPU: ON_CPU, Rein.LINK: ON_LINK, Rein.DISK: ON_DISK}


def window(second, counters=(), *, missed=True, **readings):
    seen = dict(counters)
    pressure = seen.pop("lc_pressure_ratio", Value(0.01))
    readings = {"be_cpus": Value(1.0), "lc_pressure_ratio": pressure} | readings
    tail = Quantile(0.02 if missed else 0.005, samples=100, window_seconds=1.0)
    return Telemetry(float(second), 0.01, tail, counters=seen, **readings)


def choose(*windows, choice=None, level=SOME):
    choice = choice or ReinLaw(tuple(Rein))
    for one in windows:
        choice.look(one, level, LIMITS)
    return choice.in_hand


@pytest.mark.parametrize("rein", list(Rein))
def test_rein_follows_what_the_lc_waits_for(rein):
    assert choose(*(window(at, BEHIND[rein]) for at in range(EVIDENCE))) is rein
    back = ReinLaw(tuple(Rein))
    other = next(one for one in Rein if one is not rein and one is not Rein.CPU)
    choose(*(window(at, BEHIND[other]) for at in range(EVIDENCE)), choice=back)
    later = KEEP_SECONDS + EVIDENCE
    assert choose(*(window(later + at, BEHIND[rein]) for at in range(EVIDENCE)), choice=back) is rein


def test_one_miss_moves_no_rein():
    assert choose(window(0, ON_DISK)) is Rein.CPU
    assert choose(window(0, ON_DISK), window(1 + MEMORY_SECONDS, ON_DISK)) is Rein.CPU, "long ago"
    assert choose(window(0, ON_DISK), window(1, ON_CPU), window(2, ON_DISK)) is Rein.CPU


def test_held_be_is_no_evidence():
    assert choose(*(window(at, ON_DISK) for at in range(9)), level=LIMITS.safe) is Rein.CPU
    on_disk = ReinLaw(tuple(Rein))
    choose(window(0, ON_DISK), window(1, ON_DISK), choice=on_disk)
    assert choose(*(window(99 + at, ON_CPU) for at in range(9)), choice=on_disk, level=LIMITS.minimum) is Rein.DISK
    without_cpuset = Allocation(0.011, 4)
    assert choose(*(window(99 + at, ON_CPU) for at in range(9)), choice=on_disk, level=without_cpuset) is Rein.DISK


def test_least_level_holds_no_copier():
    """Whoever needs no CPU is not held by a quota of next to nothing."""
    assert choose(*(window(at, ON_DISK, be_cpus=Value(0.0)) for at in range(9)), level=LIMITS.minimum) is Rein.DISK


def test_what_be_has_queued_speaks_of_its_rein():
    """At the least level it writes next to nothing, and the LC waits behind what it wrote before."""
    choice, drained = ReinLaw(tuple(Rein)), ON_DISK | {USE[Rein.DISK]: Value(0.01)}
    choose(window(0, ON_DISK), choice=choice)
    assert choose(window(1, drained), choice=choice, level=LIMITS.minimum) is Rein.DISK
    later = ReinLaw(tuple(Rein))
    choose(window(0, ON_DISK), window(1, drained, missed=False), choice=later)
    assert choose(window(2, drained), choice=later, level=LIMITS.minimum) is Rein.CPU, "it is gone by then"


def test_held_targets_are_no_evidence():
    assert choose(*(window(at, ON_LINK, missed=False) for at in range(9))) is Rein.CPU


def test_be_that_uses_nothing_is_not_blamed():
    idle = ON_DISK | {USE[Rein.DISK]: Value(0.01)}
    assert choose(*(window(at, idle, be_cpus=Value(0.0)) for at in range(9))) is Rein.CPU
    alone = ON_LINK | {USE[Rein.LINK]: Value(0.0)}
    assert choose(*(window(at, alone) for at in range(9))) is Rein.CPU, "the LC fills its link by itself"


def test_lc_that_sleeps_lacks_no_cpu():
    """It waits for one now and then on a busy machine, which is not why its requests are late."""
    both = ON_CPU | ON_LINK
    assert choose(*(window(at, both, lc_cpus=Value(0.05)) for at in range(EVIDENCE))) is Rein.LINK
    assert choose(*(window(at, both, lc_cpus=Value(0.5)) for at in range(EVIDENCE))) is Rein.CPU


@pytest.mark.parametrize("level", [LIMITS.safe, LIMITS.safe.but(cpuset_cpus=4)], ids=["cpuset", "none"])
def test_usual_waits_are_nobodys_doing(level):
    choice = ReinLaw(tuple(Rein))
    choose(*(window(at, ON_DISK | ON_LINK, missed=False) for at in range(30)), choice=choice, level=level)
    both = [window(30 + at, ON_DISK | ON_LINK) for at in range(EVIDENCE)]
    assert choose(*both, choice=choice) is Rein.LINK


def test_missing_rein_is_never_taken():
    assert choose(*(window(at, ON_LINK) for at in range(9)), choice=ReinLaw((Rein.CPU, Rein.DISK))) is Rein.CPU
    lost = ReinLaw(tuple(Rein))
    assert choose(*(window(at, ON_LINK) for at in range(9)), choice=lost) is Rein.LINK
    lost.drop(Rein.LINK)
    assert lost.in_hand is Rein.CPU
    assert choose(*(window(99 + at, ON_LINK) for at in range(9)), choice=lost) is Rein.CPU


def test_taken_rein_is_kept_for_a_while():
    choice = ReinLaw(tuple(Rein))
    busy = {USE[Rein.DISK]: Value(0.9), USE[Rein.LINK]: Value(0.8)}
    behind = [busy | (ON_DISK if at % 4 < 2 else ON_LINK) for at in range(120)]
    taken = [choose(window(at, counters), choice=choice) for at, counters in enumerate(behind)]
    changes = sum(one is not other for one, other in itertools.pairwise(taken))
    assert 1 <= changes <= 1 + 120 / KEEP_SECONDS


def test_link_is_tried_before_be_is_counted_there():
    full, late = {LINK_SENT: Value(0.95)}, {LINK_SENT: Value(0.95), LC_LINK: Value(0.8)}
    alone, choice, other = ReinLaw(tuple(Rein)), ReinLaw(tuple(Rein)), ReinLaw(tuple(Rein))
    for law, sent in ((alone, 0.9), (choice, 0.4), (other, 0.9)):
        usual = [window(at - 30, {LINK_SENT: Value(sent)}, missed=False) for at in range(30)]
        choose(*usual, choice=law, level=LIMITS.safe)
    assert choose(window(0, full), window(1, full), choice=alone) is Rein.CPU, "the LC sends as much by itself"
    assert choose(window(0, late), window(1, late), choice=other) is Rein.LINK
    assert choose(window(0, full), window(1, full), choice=choice) is Rein.LINK
    innocent = full | {USE[Rein.LINK]: Value(0.0)}
    assert choose(window(2, innocent), window(3, innocent), choice=choice) is Rein.CPU, "at once"
    assert choose(window(4, innocent), window(5, innocent), choice=choice) is Rein.CPU


def test_more_is_sent_beside_be_in_bytes():
    """Beside the first BE a link turns out to carry more, of which a window that the guard cut is a small share."""
    law = ReinLaw(tuple(Rein))
    choose(*(window(at - 30, sent(0.95, 2.5e6), missed=False) for at in range(30)), choice=law, level=LIMITS.safe)
    law.look(window(0, sent(0.4, 15e6)), SOME, LIMITS, ran_ratio=0.2)
    assert law.in_hand is Rein.LINK


def sent(ratio, carried):
    return {LINK_SENT: Value(ratio), LINK_CARRIED: Value(carried)}


def test_waits_behind_others_blame_nobody():
    others = ON_LINK | ON_CPU
    assert choose(*(window(at, others, be_cpus=Value(0.0)) for at in range(9))) is Rein.CPU


def test_cut_window_shows_less_of_all():
    cut = {"lc_io_pressure_ratio": Value(0.06), USE[Rein.DISK]: Value(0.04)}
    whole, early = ReinLaw(tuple(Rein)), ReinLaw(tuple(Rein))
    for at in range(EVIDENCE):
        whole.look(window(at, cut), SOME, LIMITS)
        early.look(window(at, cut), SOME, LIMITS, ran_ratio=0.1)
    assert (whole.in_hand, early.in_hand) == (Rein.CPU, Rein.DISK)


@pytest.mark.parametrize(
    ("rein", "missed", "windows"), [(Rein.LINK, True, 1), (Rein.DISK, True, 1), (Rein.LINK, False, 2)]
)
def test_cut_window_speaks_for_itself(rein, missed, windows):
    """The guard spares the LC the next missed window, which would have said the same."""
    law, seen = ReinLaw(tuple(Rein)), []
    for at in range(windows):
        seen.append(law.in_hand)
        law.look(window(at, BEHIND[rein], missed=missed), SOME, LIMITS, ran_ratio=0.2)
    assert (*seen, law.in_hand) == (*[Rein.CPU] * windows, rein)


ALLOCATIONS = st.builds(Allocation, st.floats(0.01, 4.0) | st.just(float("inf")), st.integers(1, 4), st.booleans()).map(
    LIMITS.clip
)


@given(ALLOCATIONS, ALLOCATIONS, st.sampled_from(list(Rein)))
def test_less_of_a_level_is_less_of_all(one, other, rein):
    if one.at_most(other):
        assert on_cpus(one, rein, LIMITS).at_most(on_cpus(other, rein, LIMITS))
        assert level_ratio(one, LIMITS.cpus) <= level_ratio(other, LIMITS.cpus)
    assert on_cpus(LIMITS.safe, rein, LIMITS) == LIMITS.safe
    assert on_cpus(one, rein, LIMITS) == one or not LIMITS.is_least(one), "or guards take a free BE for held"
    assert on_cpus(one, rein, LIMITS).frozen == one.frozen
    assert one.at_most(on_cpus(one, rein, LIMITS))
