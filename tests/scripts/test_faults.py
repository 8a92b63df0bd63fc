"""The fault matrix holds what it says, and notices when something does not hold."""

from dataclasses import replace

import pytest

from rlctl.envs.allocation import UNLIMITED, Allocation
from tests.faults import matrix
from tests.faults.cases import BROKEN, CASES
from tests.faults.judging import Rulings, judge
from tests.faults.kills import KILLS
from tests.faults.link_kills import LINK_KILLS
from tests.faults.onlooker import Sample
from tests.faults.pace import HOST, QUICK
from tests.needs import needs

SAFE = Allocation(0.01, 1, frozen=True)
HALF, MOST = Allocation(0.5, 1), Allocation(UNLIMITED, 2)

ALWAYS = ("policy-hangs", "foreign-writer")
IN_CI = (
    "both-sigkill",
    "sensor-nan",
    "write-eacces",
    "config-garbage",
    "lc-killed",
    "client-stalled",
    "cgroup-replaced",
)
IN_CI += ("log-disk-full", "controller-sigkill", "watchdog-sigkill", "requests-fail", "log-unusable", "be-escapes")
IN_CI += ("journal-removed", "state-elsewhere", "be-nests")
"""Of each kind one; the whole matrix takes minutes: scripts/fault-matrix."""


def test_every_fault_of_the_issue_has_its_case():
    wanted = "sensor-stale sensor-nan sensor-absurd lc-killed lc-stalled client-stalled perf-child-killed policy-raises"
    wanted += " policy-nan policy-out-of-range policy-hangs write-eacces write-einval write-enoent write-ebusy"
    wanted += " cgroup-removed cgroup-replaced foreign-writer wall-clock-jumps log-disk-full controller-sigkill"
    wanted += " controller-sigstop watchdog-sigkill both-sigkill config-garbage bundle-garbage"
    assert set(wanted.split()) <= {case.name for case in CASES}


@pytest.mark.host
@pytest.mark.parametrize("names", [ALWAYS, pytest.param(IN_CI, marks=pytest.mark.slow)], ids=["always", "in-ci"])
def test_whatever_fails_be_stays_within_the_verdict(capsys, names):
    needs()
    rows = matrix.run([case for case in CASES if case.name in names], QUICK, lambda line: None)
    assert len(rows) == len(names)
    with capsys.disabled():
        print(f"\n{matrix.table(rows)}")
    assert not [f"{row.case}: {row.wrong}" for row in rows if row.wrong]


@pytest.mark.host
@pytest.mark.parametrize("name", ["link-foreign", pytest.param("link-sigkill", marks=pytest.mark.slow)])
def test_killed_controller_leaves_no_link_held(name):
    needs()
    kills = [kill for kill in LINK_KILLS if kill.name == name]
    if reason := kills[0].lacks():
        pytest.skip(reason)
    assert not [f"{row.case}: {row.wrong}" for row in matrix.run(kills, QUICK, lambda line: None) if row.wrong]


@pytest.mark.host
@pytest.mark.parametrize(
    "names", [("testbed-both",), pytest.param(("testbed-link", "testbed-classes"), marks=pytest.mark.slow)]
)
def test_a_testbed_that_is_killed_leaves_nothing(names):
    needs()
    kills = [kill for kill in KILLS if kill.name in names]
    if reason := kills[0].lacks():
        pytest.skip(reason)
    rows = matrix.run(kills, QUICK, lambda line: None)
    assert [row.case for row in rows] == list(names)
    assert not [f"{row.case}: {row.wrong}" for row in rows if row.wrong]
    assert all("2 namespaces" in row.says for row in rows)


def samples(*found):
    """One in each tenth of a second, in the middle of its tenth."""
    return [Sample(0.1 * n + 0.04, 0.1 * n + 0.05, one) for n, one in enumerate(found)]


def ruled(*verdicts):
    """A tick in each whole second, of 10 ms."""
    seconds = [float(n) for n in range(len(verdicts))]
    return Rulings(seconds, [one + 0.01 for one in seconds], verdicts)


def test_time_is_of_first_fitting_look():
    seen = samples(MOST, MOST, Allocation(0.5, 1, frozen=True), SAFE, SAFE)
    judged = judge(seen, ruled(MOST), SAFE, 0.1, (0.1, 9.0))
    assert judged.seconds == pytest.approx(0.25)
    assert not judged.freer


@pytest.mark.parametrize(("last", "seconds"), [(HALF, float("inf")), (SAFE, 0.45)])
def test_time_counts_until_safe_for_good(last, seconds):
    """A tick that began before the fault held BE for a slow client, and the next one freed it."""
    judged = judge(samples(SAFE, MOST, MOST, HALF, last), ruled(MOST), SAFE, 0.0, (0.0, 9.0))
    assert judged.seconds == pytest.approx(seconds)
    assert not judged.freer, "the verdict was no less"


def test_leaving_what_verdict_says_counts_once_each():
    judged = judge(samples(HALF, MOST, MOST, HALF, MOST), ruled(HALF), None, 0.0, (0.0, 9.0))
    assert judged.freer == 2
    assert "allowed 0.50 CPU on 1 CPU" in judged.first


@pytest.mark.parametrize(
    ("found", "freer"),
    [(HALF, 0), (Allocation(0.6, 1), 1), (Allocation(0.5, 2), 1), (Allocation(0.6, 2, frozen=True), 0), (None, 0)],
)
def test_every_knob_is_held_to_the_verdict(found, freer):
    assert judge(samples(HALF, found, HALF), ruled(HALF), None, 0.0, (0.0, 9.0)).freer == freer


def test_be_that_was_told_to_freeze_is_held():
    told = Sample(0.1, 0.11, Allocation(0.01, 1), ordered=True)
    assert judge([told], ruled(SAFE), SAFE, 0.0, (0.0, 9.0)).seconds == pytest.approx(0.11)
    told = Sample(0.1, 0.11, HALF, ordered=True)
    assert judge([told], ruled(SAFE), SAFE, 0.0, (0.0, 9.0)).seconds == float("inf")
    assert judge([*samples(SAFE), told], ruled(SAFE), SAFE, 0.0, (0.0, 9.0)).freer == 0


def test_verdict_holds_from_its_ticks_end():
    seen = [Sample(1.005, 1.006, MOST), Sample(1.02, 1.021, MOST)]
    assert judge(seen, ruled(MOST, HALF), None, 0.0, (0.0, 9.0)).freer == 1
    assert judge(seen[:1], ruled(MOST, HALF), None, 0.0, (0.0, 9.0)).freer == 0


def test_be_that_never_gets_there_never_did():
    assert judge(samples(MOST, MOST), ruled(MOST), SAFE, 0.0, (0.0, 9.0)).seconds == float("inf")


def test_freer_before_it_is_safe_counts_too():
    """A controller that hung once left BE unlimited for nine seconds, and then it was safe."""
    seen = samples(HALF, HALF, MOST, MOST, SAFE)
    judged = judge(seen, ruled(HALF), SAFE, 0.0, (0.0, 0.5))
    assert judged.seconds == pytest.approx(0.45)
    assert judged.freer == 1
    assert not judge(seen, ruled(HALF), SAFE, 0.0, (0.0, 0.5), [(0.0, 0.4)]).freer


def test_longest_time_without_a_look_is_told():
    assert judge(samples(HALF, HALF), ruled(HALF), None, 0.0, (0.0, 0.15)).gap_seconds == pytest.approx(0.09)
    assert judge(samples(HALF, HALF), ruled(HALF), None, 0.0, (0.0, 1.0)).gap_seconds == pytest.approx(0.85)


def test_cpu_time_beyond_the_verdict_is_told():
    """A task that left its groups runs on while the knobs say that all stand still."""
    used = [Sample(0.1 * n + 0.04, 0.1 * n + 0.05, SAFE, used_seconds=0.1 * n) for n in range(10)]
    assert judge(used, ruled(SAFE), SAFE, 0.0, (0.0, 1.0)).excess_seconds == pytest.approx(0.9)
    assert judge(used, ruled(MOST), None, 0.0, (0.0, 1.0)).excess_seconds == 0.0


def test_waiting_for_a_cpu_is_told():
    seen = [Sample(0.1 * n, 0.1 * n + 0.01, SAFE if n >= 9 else MOST, waited_seconds=0.05 * n) for n in range(12)]
    assert judge(seen, ruled(MOST), SAFE, 0.1, (0.0, 2.0)).waited_seconds == pytest.approx(0.4)


@pytest.mark.host
@pytest.mark.slow
def test_what_is_broken_on_purpose_is_caught(capsys):
    needs()
    rows = matrix.run(
        BROKEN, replace(QUICK, gap_seconds=HOST.gap_seconds, slow_ratio=1.0, patience_seconds=40.0), print
    )
    with capsys.disabled():
        print(f"\n{matrix.table(rows)}")
    assert not [row.case for row in rows if not (row.wrong or row.busy or row.skipped)]
    assert not [row.case for row in rows if row.wrong.startswith("could not be run")]
