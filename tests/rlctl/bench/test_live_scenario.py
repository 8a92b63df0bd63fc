"""Scenarios that ship load; a wrong one is one line with file and line."""

import contextlib
import pickle
import re
from collections import Counter
from itertools import pairwise

import pytest

from rlctl.agents import catalogue
from rlctl.agents.managers.table import Level, QuotaTable
from rlctl.bench.scenarios import changed, load_scenario, shipped_scenarios
from rlctl.bench.testbed import LivePlan, divide_resource, with_levels
from rlctl.commands.bench_runs import _minutes
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.telemetry import Value
from rlctl.envs.testbed.scenario import LiveScenario, ScenarioLc
from rlctl.envs.workload import SLO, Weight
from rlctl.envs.yaml_edge import configs_folder
from rlctl.safety.profile import load_profile


def test_what_ships_is_what_the_contract_names():
    live = {name: one for name, one in shipped_scenarios().items() if isinstance(one, LiveScenario)}
    links = {"live-network", "live-network-credits", "live-network-sendfile", "live-moving"}
    disks = {"live-disk", "live-disk-direct"}
    assert set(live) == {"live-nginx", "live-memcached", "live-memory", "live-memory-16", *disks, *links}
    for name, scenario in live.items():
        assert scenario.name == name
        assert 0.0 < scenario.trace.rate(0.0) < 1.0
        assert scenario.slo.target_seconds == 0.010


def test_recorded_load_is_read_once(tmp_path):
    """All runs of a comparison have the same load, on whatever machine and whatever becomes of the file."""
    text = (configs_folder("scenarios") / "live-nginx.yaml").read_text()
    path, csv = tmp_path / "mine.yaml", tmp_path / "day.csv"
    path.write_text(re.sub(r"load: \{.*?\}", "load: {kind: csv_replay, path: day.csv}", text))
    csv.write_text("time_seconds,rate_rps\n0,0.2\n60,0.8\n")
    scenario = load_scenario(str(path))
    csv.unlink()
    assert pickle.loads(pickle.dumps(scenario)).trace.rate(30.0) == pytest.approx(0.5)


def test_an_unknown_scenario_lists_what_there_is():
    with pytest.raises(ConfigError, match="live-nginx"):
        load_scenario("live-ngnix")


@pytest.mark.parametrize(
    ("name", "right", "wrong", "said"),
    [
        ("nginx", "duration_seconds: 30", "duration: 60", "duration"),
        ("nginx", "duration_seconds: 30", "duration_seconds: .inf", "duration_seconds is inf: .*finite"),
        ("nginx", "low: 0.22", "low: 0.9", "low"),
        ("nginx", "high: 0.80", "high: 80", r"high: 80 .*write 0\.80"),
        ("nginx", "kind: sinusoid", "kind: sine", "sinusoid"),
        ("nginx", "weight: equal", "weight: huge", "weight"),
        ("nginx", "target_milliseconds: 10", "target_milliseconds: -1", "target"),
        ("nginx", "slo: {target", "slo: {quantile_percent: 97, target", "quantile_percent.*95 or 99"),
        ("nginx", "start_rps: 400", "start_rps: 2000000", "impossible knee search: start 2e[+]06"),
        ("nginx", "start_rps: 400", "start_rps: 4000", "start is not above top"),
        ("nginx", "step_rps: 200", "step_rps: 0.2", "takes more than 1000 steps"),
        ("nginx", "kind: cpu, workers: 2", "kind: mixed, workers: 1", "be.workers: mixed takes 2 at least"),
        ("nginx", "cpus: [0], weight", "cpus: [], weight", r"cpus.*needs CPUs, each of them once.*not \[\]"),
        ("nginx", "cpus: [0], weight", "cpus: [1, 1], weight", r"cpus.*each of them once.*not \[1, 1\]"),
        ("network", "link: {rates: [[0, 150]]}", "# no link", "an upload needs a link"),
        ("network", "[[0, 150]]", "[[5, 150]]", "the first is at 0"),
        ("network", "[[0, 150]]", "[[0, 0.3]]", "a link of 0.3 Mbit/s"),
        ("network", "[[0, 150]]", "[150]", "rates"),
        ("network", "rates: [[0, 150]]", "rates: [[0, 150]], burst: 3", "burst"),
        ("network", "kind: upload", "kind: uplaod", "upload"),
        ("network", "workers: 1", "workers: 33", "be.workers: upload takes 32 at most"),
        ("network-sendfile", "link: {rates: [[0, 150]]}", "# no link", "an upload needs a link"),
        ("disk", "disk: {megabytes: 30}", "# no disk", "a writer needs a disk"),
        ("disk-direct", "workers: 1", "workers: 5", "be.workers: copy takes 4 at most"),
        ("disk", "megabytes: 30", "megabytes: 0", "megabytes"),
        ("disk", "megabytes: 30", "megabytes: 1e9", "megabytes"),
        ("disk", "megabytes: 30}", "megabytes: 30}\nlink: {rates: [[0, 300]]}", "leave out the link"),
        ("disk", "kind: postgres,", "kind: postgres, keys: 60000,", "postgres has none"),
    ],
)
def test_a_wrong_scenario_says_where(tmp_path, name, right, wrong, said):
    text = (configs_folder("scenarios") / f"live-{name}.yaml").read_text()
    assert right in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(right, wrong))
    with pytest.raises(ConfigError, match=rf"mine\.yaml:\d+: .*{said}"):
        load_scenario(str(path))


def test_live_memorys_lc_exceeds_a_cores_caches():
    assert load_scenario("live-memory").service().preload_keys == 60_000
    assert load_scenario("live-memcached").service().preload_keys == 10_000


def test_lc_has_a_worker_for_each_cpu():
    assert load_scenario("live-memory-16").service().threads == 2
    assert load_scenario("live-memory").service().threads == 1
    assert ScenarioLc(kind="nginx", cpus=(0, 1, 2)).service(None).workers == 3


def test_disk_is_provisioned_and_written_to():
    one = load_scenario("live-disk")
    assert (one.disk.megabytes, one.link, one.service().name) == (30.0, None, "postgres")
    assert (one.be.kind, one.be.workers) == ("write", 1)
    assert load_scenario("live-disk-direct").be.kind == "copy"
    assert load_scenario("live-network").disk is None


def test_link_is_served_and_uploaded_over():
    one = load_scenario("live-network-credits")
    assert one.service().address == ("169.254.77.1", 7001)
    assert [one.link.rate_mbit(t) for t in (0.0, 25.0, 59.0)] == [150.0, 75.0, 150.0]
    assert (one.be.kind, one.be.workers) == ("upload", 1)
    assert load_scenario("live-nginx").link is None


def test_source_that_is_named_has_a_port():
    told = {one: changed(load_scenario("live-disk"), source=one) for one in (None, "generator", "tcp")}
    assert [one.service().address for one in told.values()] == [None, ("127.0.0.1", 7001), ("127.0.0.1", 7001)]


def test_kernels_answers_are_no_managers():
    one = LivePlan(load_scenario("live-network"), ("htb", "htb-wrong"), 1, load_profile("responsive"))
    equal = LivePlan(load_scenario("live-nginx"), ("htb",), 1, load_profile("responsive"))
    policy = one.policy("htb-wrong")
    assert (policy.name, policy.shielded) == ("htb-wrong", False)
    assert equal.weight("htb-wrong") is Weight.MINIMUM
    assert "a third faster" in policy.remarks[0]
    assert not set(catalogue.ANSWERS) & {*catalogue.NAMES, *catalogue.LEARNED, *catalogue.BOUNDS}
    for name, resource in (("htb", "link"), ("io-max-wrong", "disk")):
        with pytest.raises(PolicyError, match=f"setting of the kernel.*that has a {resource}"):
            catalogue.build(name)


def test_answer_is_told_any_rate():
    disk = load_scenario("live-disk-direct")
    one = LivePlan(disk, ("io-max@0.5", "io-max"), 1, load_profile("responsive"))
    assert "told 0.5 of it" in one.policy("io-max@0.5").remarks[0]
    assert one.weight("io-max@0.5") is Weight.MINIMUM
    assert divide_resource("io-max@0.5", disk, Link()) == ("disk", 0.5)
    assert divide_resource("htb-oracle@2", load_scenario("live-network"), Link()) == ("link", 2.0, "told")
    for wrong in ("io-max@", "io-max@0", "io-max@much", "io-max@nan", "ppo@0.5"):
        with pytest.raises(PolicyError, match=r"after the @|no manager"):
            one.policy(wrong)


def plan(*managers, repeats=3):
    return LivePlan(load_scenario("live-nginx"), managers, repeats, load_profile("responsive"))


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcdefghijk"])
def test_places_and_neighbours_are_the_same_for_all(names):
    """With two managers one was first in each of three rounds."""
    rounds = len(names) * (1 + len(names) % 2)
    orders = [plan(*names).order(repeat) for repeat in range(rounds)]
    assert all(sorted(order) == list(names) for order in orders)
    assert {Counter(places)[name] for places in zip(*orders, strict=True) for name in names} == {rounds // len(names)}
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    assert set(pairs.values()) == {rounds // len(names)}
    assert len(pairs) == len(names) * (len(names) - 1), "nobody always follows the same one"


def test_published_cores_are_scaled_and_say_so():
    hybrid = plan("prm-hybrid").policy("prm-hybrid")
    assert (hybrid.time_scale, hybrid.core_cpus) == (15.0, 0.0278)
    assert any("0.0278" in remark for remark in hybrid.remarks)


def test_references_have_a_weight_of_their_own():
    one = plan("weights", "prm-hybrid")
    assert one.weight("weights") is Weight.MINIMUM
    assert one.weight("prm-hybrid") is Weight.EQUAL
    least = LivePlan(load_scenario("live-network"), ("none", "ppo"), 1, load_profile("responsive"))
    assert (least.weight("none"), least.weight("ppo")) == (Weight.EQUAL, Weight.MINIMUM)


class Link:
    """Notes what of a testbed is divided, and how."""

    slo = SLO(0.01, 0.95, 2800.0)

    def divide_resource(self, resource, rate_ratio, *, follows):
        return (resource, rate_ratio, "told") if follows else (resource, rate_ratio)

    def ceiling(self, law, period_seconds):
        assert law({"link_ratio": Value(0.9), "lc_link_ratio": Value(0.4)}) == pytest.approx(0.55)
        return "ceiling", period_seconds


def test_heracles_holds_be_on_a_link():
    linked, other = load_scenario("live-network"), load_scenario("live-nginx")
    assert divide_resource("heracles", linked, Link()) == ("ceiling", pytest.approx(1.0 / 15.0))
    assert isinstance(divide_resource("heracles", other, Link()), contextlib.nullcontext)
    assert isinstance(divide_resource("frozen", linked, Link()), contextlib.nullcontext)
    assert divide_resource("htb-wrong", linked, Link()) == ("link", pytest.approx(4 / 3))
    assert divide_resource("htb-oracle", linked, Link()) == ("link", 1.0, "told")
    assert divide_resource("io-max", load_scenario("live-disk"), Link()) == ("disk", 1.0)


@pytest.mark.parametrize(("swept_rps", "said"), [(2800.0, ""), (2400.0, "was swept with 2400 rps, here it is 2800")])
def test_a_table_of_a_slower_host_says_so(tmp_path, capsys, swept_rps, said):
    level = Level(load_ratio=0.5, quota_cpus=0.5, cpuset_cpus=1)
    QuotaTable(source="a test", target_milliseconds=10.0, max_load_rps=swept_rps, be_weight="minimum", lc_cpus=1.0,
               be_cpus=1, levels=(level,)).write(tmp_path / "t.yaml")  # fmt: skip
    options = {"table": {"file": str(tmp_path / "t.yaml")}}
    scenario = load_scenario("live-network").model_copy(update={"managers": options})
    one = LivePlan(scenario, ("table",), 1, load_profile("responsive"))
    assert with_levels(one, Link()) is one
    told = capsys.readouterr().err
    assert said in told
    assert bool(said) == bool(told)


def test_time_told_is_taken_and_never_0():
    short = load_scenario("live-nginx").model_copy(update={"duration_seconds": 5.0})
    assert _minutes(LivePlan(short, ("frozen",), 1, load_profile("responsive"))) == 1
    assert _minutes(plan("frozen", "none", repeats=1)) == 2  # search 60 s, solo 12 s, two runs of 34 s
    assert _minutes(plan("prm-eris", "none", repeats=1)) == 3  # and the model's recording
