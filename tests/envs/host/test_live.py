"""The live host as a plant, over a fake kernel: readings merged, writes read back, deadlines kept, originals back."""

import math
import time
import warnings
from types import SimpleNamespace

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import rlctl.envs  # noqa: F401 - registers the ids
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.live import Lc, LiveHost, LiveParts
from rlctl.envs.host.max_load import UTILISATION, MaxLoad
from rlctl.envs.host.poller import LcSources, Poller
from rlctl.envs.host.reins.reins import Reins
from rlctl.envs.reins import EVIDENCE, USE, Rein
from rlctl.envs.telemetry import Missing, Quantile, Value, Why
from rlctl.envs.workload import SLO, Weight
from tests.doubles.cgroup_kernel import FakeKernel

LIMITS = Limits(cpus=2)


class Fixed:
    name = "fixed"

    def __init__(self, **readings):
        self.readings = readings
        self.provides = tuple(readings)
        self.closed = False

    def read(self, now_seconds):
        return self.readings

    def close(self):
        self.closed = True


class Broken(Fixed):
    def read(self, now_seconds):
        raise RuntimeError("boom")


@pytest.fixture
def be(tmp_path):
    kernel = FakeKernel(tmp_path, "hybrid")
    layout = Layout.detect(kernel.root, kernel.proc)
    knobs = Knobs(None, kernel)
    return Group.create(layout, "be", knobs), knobs, kernel


def host(be, *sensors, tick_seconds=0.001, closed=lambda: None, **options):
    group, knobs, _ = be
    actuator = BeActuator([group], (1, 0), LIMITS, knobs)
    return LiveHost(
        [Lc("web", SLO(0.01, max_load_rps=100.0), sensors)], actuator, tick_seconds, closed, LiveParts(**options)
    )


def test_fields_and_counters_are_told_apart(be):
    sensor = Fixed(
        tail_latency_seconds=Quantile(0.004, samples=50),
        lc_cpus=Value(0.5),
        done_rps=Value(500.0),
        be_cpus=Value(1.0),
        lc_cache_misses=Value(7.0),
    )
    telemetry = host(be, sensor).read()
    assert telemetry.slack_ratio == pytest.approx(0.6)
    assert telemetry.lc_cpu_seconds_per_request.value == pytest.approx(0.001)
    assert telemetry.be_work_rate.value == pytest.approx(0.5)
    assert telemetry.counters["lc_cache_misses"] == Value(7.0)
    assert telemetry.cpi.why is Why.NOT_CONFIGURED


def test_worst_off_speaks_for_several_lcs(be):
    group, knobs, _ = be
    first = Fixed(tail_latency_seconds=Quantile(0.004, samples=50), load_ratio=Value(0.5), be_cpus=Value(1.0))
    own = Fixed(
        tail_latency_seconds=Quantile(0.019, samples=50),
        load_ratio=Value(0.2),
        be_cpus=Value(9.0),
        lc_memory_pressure_ratio=Value(0.5),
    )
    cache = Lc("cache", SLO(0.02, max_load_rps=10.0), (own,))
    actuator = BeActuator([group], (1, 0), LIMITS, knobs)
    web = Lc("web", SLO(0.01, max_load_rps=100.0), [first])
    plant = LiveHost([web, cache], actuator, 0.001, lambda: None)
    telemetry = plant.read()
    assert telemetry.ruling == "cache"
    assert telemetry.slack_ratio == pytest.approx(0.05)
    assert telemetry.load_ratio == Value(0.5)
    assert telemetry.be_cpus == Value(1.0), "BE is the same for all"
    assert telemetry.lcs["web"].slack_ratio == pytest.approx(0.6)
    waited = {name: lc.counters.get("lc_memory_pressure_ratio") for name, lc in telemetry.lcs.items()}
    assert waited == {"web": None, "cache": Value(0.5)}, "of each LC, for its guards"
    own.readings = {}
    assert plant.read().slack_ratio is None
    plant.close()
    assert own.closed


def test_be_is_peopled_by_any_process(be):
    group, _, kernel = be
    plant = host(be)
    assert not plant.has_processes()
    group.attach(4_000_001)
    assert plant.has_processes()
    for listing in kernel.root.rglob("cgroup.procs"):
        listing.unlink()
    assert plant.has_processes(), "who cannot look does not say that nobody is there"


class Divider:
    def __init__(self, why=""):
        self.why, self.budgets, self.shares = why, [], {"1:app": None}

    def look(self):
        pass

    def share(self, budget):
        self.budgets.append(budget)
        if self.why:
            raise RuntimeError(self.why)

    def pop_regrouped(self):
        return True


def test_division_tells_the_watchdog_of_new_groups(be):
    plans = []
    plant = host(be, sharing=Divider(), replan=plans.append)
    applied = plant.apply(Allocation(0.5, 1))
    assert plant.sharing.budgets == [applied]
    assert len(plans) == 1
    assert plant.shares == {"1:app": None}


def test_failed_division_leaves_verdict_and_is_said(be, caplog):
    plant = host(be)
    plant.sharing = Divider("boom")
    for _ in range(3):
        assert plant.apply(Allocation(0.5, 1)) == Allocation(0.5, 1)
    assert caplog.text.count("boom") == 2, "at the first and second time in a row"


def test_raising_sensor_loses_its_readings_only(be):
    telemetry = host(be, Fixed(load_ratio=Value(0.3)), Broken(cpi=Value(1.0))).read()
    assert telemetry.load_ratio == Value(0.3)
    assert isinstance(telemetry.cpi, Missing)
    assert "boom" in telemetry.cpi.detail


def test_what_is_applied_is_what_reads_back(be):
    plant = host(be)
    assert plant.apply(Allocation(0.5, 1)) == Allocation(0.5, 1)
    group, _, _ = be
    assert group.cpu.quota().cpus == pytest.approx(0.5)
    assert group.cpuset.cpus() == {1}
    assert plant.apply(Allocation(0.5, 2, frozen=True)).frozen
    plant.set_weight(Weight.MINIMUM)
    assert group.cpu.weight() == 2


def test_refused_write_is_error_and_current_tells_truth(be):
    plant = host(be)
    plant.apply(Allocation(0.5, 1))
    be[2].ignored.add("cpu.cfs_quota_us")
    with pytest.raises(CgroupError, match=r"cpu\.cfs_quota_us"):
        plant.apply(Allocation(1.5, 1))
    assert plant.current == Allocation(0.5, 1)


def test_missed_deadlines_are_counted_not_queued(be):
    plant = host(be, tick_seconds=0.3)  # longer than a busy machine leaves this thread alone
    plant.reset()
    assert plant.wait() == 0
    time.sleep(0.7)
    assert plant.wait() >= 2
    begun = time.monotonic()
    assert plant.wait() == 0
    assert time.monotonic() - begun > 0.1


def test_a_wait_may_be_cut_short(be):
    asked = []
    plant = host(be, tick_seconds=600.0, sleep=asked.append)
    plant.reset()
    assert plant.wait() == 0
    assert asked == [pytest.approx(600.0, abs=60.0)]


def test_close_restores_once_despite_a_sensor(be):
    calls = []

    class Stuck(Fixed):
        def close(self):
            raise OSError("stuck")

    plant = host(be, Stuck(), closed=lambda: calls.append(1))
    with pytest.raises(OSError, match="stuck"):
        plant.close()
    plant.close()
    assert calls == [1]


def test_gymnasium_accepts_live_host_over_fake_tree(be):
    readings = Fixed(tail_latency_seconds=Quantile(0.004, samples=50), load_ratio=Value(0.5), lc_alive=Value(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make("rlctl/LiveHost-v0", plant=host(be, readings))
        check_env(env.unwrapped, skip_render_check=True)


def test_a_reading_that_nobody_provides_says_why(be):
    telemetry = host(be, Fixed(load_ratio=Value(0.3))).read()
    missing = [getattr(telemetry, name) for name in ("cpi", "lc_cpus", "lc_pressure_ratio", "be_work_rate")]
    assert all(isinstance(reading, Missing) and reading.detail for reading in missing)


def test_applied_between_ticks_is_of_that_period(be):
    """A hold before the period is over must not pass for a BE that had nothing all the time."""
    telemetry = {"be_cpus": Value(0.4), "tail_latency_seconds": Quantile(0.004, samples=50)}
    held, begun = [], []
    see = lambda *_, be_held, **_more: held.append(be_held)  # noqa: E731
    learner = SimpleNamespace(observe=see, contradiction=lambda _: "", usable_cpus=1.0)
    group, knobs, _ = be
    lc = Lc("web", SLO(0.01, max_load_rps=100.0), (Fixed(**telemetry),), learner)
    actuator = BeActuator([group], (1, 0), LIMITS, knobs)
    actuator.ownership.begin_tick = lambda: begun.append(1)
    plant = LiveHost([lc], actuator, 0.001, lambda: None)
    plant.apply(LIMITS.full)
    plant.read()
    plant.apply(Allocation(0.5, 1))
    for _ in range(3):
        plant.apply(LIMITS.safe)
    assert plant.read().counters["be_allowed_cpus"] == Value(2.0), "all that it had in the period"
    assert held[-1] is False
    plant.apply(LIMITS.safe)
    plant.apply(LIMITS.safe)
    assert plant.read().counters["be_allowed_cpus"] == Value(0.0)
    assert held[-1] is True
    assert len(begun) == 3, "other programs' claims are counted in ticks"


def test_what_is_read_at_a_reset_teaches_nobody(be):
    """A few milliseconds of CPU time by the requests of a whole second were a request that costs next to nothing."""
    group, knobs, _ = be
    sensors = Fixed(tail_latency_seconds=Quantile(0.004, samples=50), offered_rps=Value(70.0), lc_cpus=Value(0.1))
    learned = MaxLoad("web", 1.0)
    lc = Lc("web", SLO(0.01, max_load_rps=math.inf), (sensors,), learned)
    LiveHost([lc], BeActuator([group], (1, 0), LIMITS, knobs), 0.001, lambda: None).reset()
    assert learned.cautious_rps is None


def test_learned_maximum_stands_in_the_counters(be):
    group, knobs, _ = be
    sensors = Fixed(tail_latency_seconds=Quantile(0.004, samples=50), done_rps=Value(70.0), lc_cpus=Value(0.1))
    lc = Lc("web", SLO(0.01, max_load_rps=math.inf), (sensors,), MaxLoad("web", 1.0))
    plant = LiveHost([lc], BeActuator([group], (1, 0), LIMITS, knobs), 0.001, lambda: None)
    plant.apply(LIMITS.safe)
    telemetry = [plant.read() for _ in range(2)][-1]
    most = telemetry.counters["max_load_rps"].value
    assert telemetry.load_ratio.value == pytest.approx(70.0 / most)
    assert most == pytest.approx(UTILISATION / (0.1 / 70.0))


class HeldDisk:
    """A rein beside the CPUs, as far as a host needs one."""

    most = None

    def __init__(self):
        self.ratio = None

    def hold(self, ratio):
        self.ratio = ratio

    def read_use(self, now_seconds):
        return {USE[Rein.DISK]: 0.9}

    is_known = True

    def prepare(self): ...

    def judge(self, **window): ...

    def follow(self, be_groups): ...

    def close(self): ...


def on_disk(be, **options):
    """A host whose LC waited for its disk beside BE, in as many windows as it takes."""
    group, knobs, _ = be
    actuator, disk = BeActuator([group], (1, 0), LIMITS, knobs), HeldDisk()
    reins = Reins(actuator, {Rein.DISK: disk})
    late = Fixed(tail_latency_seconds=Quantile(0.02, samples=50), lc_io_pressure_ratio=Value(0.6), be_cpus=Value(0.0))
    lcs = [Lc("web", SLO(0.01, max_load_rps=100.0), (late, reins))]
    plant = LiveHost(lcs, actuator, 0.001, lambda: None, LiveParts(reins=reins, **options))
    reins.moves = lambda: True
    for _ in range(EVIDENCE + 1):
        plant.apply(Allocation(1.0, 2))
        telemetry = plant.read()
    return plant, disk, telemetry


def test_level_moves_what_the_lc_waits_for(be):
    plant, disk, telemetry = on_disk(be)
    assert (telemetry.rein, disk.ratio, plant.current) == (Rein.DISK, 0.5, Allocation(1.0, 2))
    assert plant.reins.cpus == LIMITS.full
    assert telemetry.counters["be_allowed_cpus"].value == 2.0, "what BE may use of the CPUs is not its level"
    plant.close()


def test_cut_between_ticks_freezes_under_any_rein(be):
    plant, disk, _ = on_disk(be)
    plant.apply(Allocation(1.0, 2))
    plant.apply(LIMITS.safe)
    assert plant.current == plant.reins.cpus == LIMITS.safe
    assert disk.ratio == pytest.approx(0.005)
    assert plant.read().rein == Rein.DISK
    plant.close()


def test_only_an_alarm_is_a_cut(be, monkeypatch):
    """A limit or a pause in the midst of a period says nothing of the link."""
    plant, _, _ = on_disk(be)
    ran = []
    monkeypatch.setattr(plant.reins, "look", lambda telemetry, level, ran_ratio: ran.append(ran_ratio))
    for alarm, between in ((False, Allocation(0.5, 2)), (False, LIMITS.safe), (True, LIMITS.safe)):
        plant.apply(Allocation(1.0, 2))
        if alarm:
            plant.note_cut()
        plant.apply(between)
        time.sleep(0.01)
        plant.read()
    plant.close()
    assert ran[0] == ran[1] == 1.0 > 0.5 > ran[2]


def test_proposed_target_reaches_the_looks(be):
    """One that was kept comes back before the fast guard asks what to judge by."""
    group, knobs, _ = be
    watch = Poller({"web": LcSources(SLO(1e5), ())}, None)
    lcs = [Lc("web", SLO(1e5, max_load_rps=100.0), (Fixed(),))]
    actuator = BeActuator([group], (1, 0), LIMITS, knobs)
    plant = LiveHost(lcs, actuator, 0.001, lambda: None, LiveParts(watch=watch))
    plant.set_target("web", 0.012)
    assert watch.lcs["web"].slo.target_seconds == plant.slo.target_seconds == 0.012
    plant.close()


def test_applications_divide_what_cpus_there_are(be):
    plant, _, _ = on_disk(be, sharing=Divider())
    assert plant.sharing.budgets[-1] == LIMITS.full, "BE is held by its disk, and not a second time by its CPUs"
    plant.close()
