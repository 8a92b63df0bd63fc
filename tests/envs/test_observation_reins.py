"""What a host taught is kept for each rein: a level of one says nothing of the same level of another."""

import pytest

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observer
from rlctl.envs.reins import FELL, USE, Rein
from rlctl.envs.telemetry import Quantile, Telemetry, Value

LIMITS = Limits(cpus=4, least_weight=True)
HALF = Allocation(2.0, 4)


def window(second, rein=Rein.CPU, *, used=0.5, missed=False):
    tail = Quantile(0.02 if missed else 0.005, samples=100, window_seconds=1.0)
    counters = {USE[Rein.LINK]: Value(used), USE[Rein.DISK]: Value(used)}
    return Telemetry(float(second), 0.01, tail, load_ratio=Value(0.5), be_cpus=Value(0.0), counters=counters, rein=rein)


def watch(observer, *windows):
    for one in windows:
        observer.observe(one, HALF)
    return observer


def test_each_rein_has_an_experience_of_its_own():
    observer = watch(Observer(LIMITS, 1.0), *(window(at, Rein.LINK) for at in range(5)))
    assert observer.experience.look_up(0.5).level >= 0
    watch(observer, window(5), window(6))
    assert observer.experience.look_up(0.5).level == -1, "BE used next to no CPU"
    watch(observer, window(7, Rein.LINK))
    assert observer.experience.look_up(0.5).level >= 0, "and it is not forgotten"
    assert [one.name for one in observer.experiences] == ["experience on the link", "experience"]


def test_little_use_of_a_rein_says_nothing():
    observer = watch(Observer(LIMITS, 1.0), *(window(at, Rein.DISK, used=0.05) for at in range(5)))
    assert observer.experience.look_up(0.5).level == -1


def test_all_is_free_where_the_lc_goes_first():
    observer = Observer(Limits(cpus=4), 1.0)
    free = [observer.experience_on(rein).rows[0]["apart"] for rein in Rein]
    assert free == [False, True, True]


def test_what_rests_grows_older():
    fresh, old = (watch(Observer(LIMITS, 1.0), *(window(at, Rein.LINK) for at in range(9))) for _ in range(2))
    for observer, gone in ((fresh, 1), (old, 150_000)):
        watch(observer, window(9), window(9 + gone), window(10 + gone, Rein.LINK))
    counts = [observer.experience.plain()["cells"][0][2] for observer in (fresh, old)]
    assert counts[1] < 0.5 * counts[0]


def test_backlog_is_not_blamed_on_another_rein():
    observer = watch(
        Observer(LIMITS, 1.0), window(0), window(1), *(window(at, Rein.LINK, missed=True) for at in (2, 3))
    )
    watch(observer, *(window(at, Rein.LINK) for at in range(4, 9)))
    assert observer.experience.plain()["cells"][0][3] == 0.0


def test_vector_shows_the_use_of_the_rein():
    shown = [
        watch(Observer(LIMITS, 1.0)).observe(window(0, rein, used=0.5), HALF).vector for rein in (Rein.CPU, Rein.LINK)
    ]
    assert (shown[0] != shown[1]).any()
    same = watch(Observer(LIMITS, 1.0)).observe(window(0).but(be_cpus=Value(2.0)), HALF).vector
    assert same == pytest.approx(shown[1])


def test_other_observer_goes_on_with_all():
    before = watch(Observer(LIMITS, 1.0), *(window(at, Rein.LINK) for at in range(5)))
    after = Observer(LIMITS, 1.0)
    after.go_on(before)
    assert after.experience is before.experience
    after.forget()
    assert after.experience.look_up(0.5).level == -1


def test_wrong_rate_is_not_held_against_a_level():
    fell, stayed = (watch(Observer(LIMITS, 1.0), *(window(at, Rein.LINK) for at in range(5))) for _ in range(2))
    for observer, after in ((fell, 0.5), (stayed, 0.0)):
        for at in range(5, 9):
            one = window(at, Rein.LINK, missed=at in (6, 7))
            watch(observer, one.but(counters={**one.counters, FELL[Rein.LINK]: Value(after if at == 7 else 0.0)}))
    misses = [sum(cell[3] for cell in observer.experience.plain()["cells"]) for observer in (fell, stayed)]
    assert misses[0] == 0.0 < misses[1]
