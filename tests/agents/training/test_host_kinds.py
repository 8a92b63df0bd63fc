"""The hosts that policies learn on: kinds as data, spread by share, on seeds that nothing is reported on."""

from collections import Counter
from itertools import pairwise

import pytest

from rlctl.agents.training.host_kinds import HostShare, dealt, first_seed, load_hosts, present, spread, validation_seed
from rlctl.envs.errors import ConfigError
from rlctl.envs.reward import WORK
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.sim.seeds import SeedKind, kind_of
from rlctl.envs.workload import Weight

HOSTS = """kinds:
  - name: one
    profile: thesis-host
    constants: {threads: 8}
    ranges: {tail_cv: [0.1, 0.2]}
    weight: minimum
    safety: responsive
    work: 0.07
    share: 2
  - {name: two, like: one, safety: null, ranges: {rate_cv: [0.0, 0.1]}, share: 1}
"""


def written(tmp_path, text):
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    return path


def test_the_shipped_kinds_are_hosts():
    hosts = load_hosts()
    for kind in hosts.kinds:
        env = HostShare.of(kind, 2, hosts).simulated((1, 0))
        assert env.reset(seed=0)[0].shape[0] == 2


def test_kind_takes_the_rest_from_another(tmp_path):
    one, two = load_hosts(written(tmp_path, HOSTS)).kinds
    assert (two.profile, two.constants, two.weight) == (one.profile, one.constants, one.weight)
    assert two.work == one.work == 0.07
    assert two.ranges == {"tail_cv": (0.1, 0.2), "rate_cv": (0.0, 0.1)}
    assert two.shield() is None
    assert two.host().values()["threads"] == 8


def test_constant_that_is_said_is_drawn_nowhere(tmp_path):
    more = "  - {name: three, like: one, constants: {tail_cv: 0.3}, share: 1}\n"
    more += "  - {name: four, like: three, ranges: {threads: [2, 3]}, share: 1}\n"
    one, _, three, four = load_hosts(written(tmp_path, HOSTS + more)).kinds
    drawn = load_profile("thesis-host").ranges.keys()
    assert {"threads", "tail_cv"} <= drawn
    assert one.host().ranges.keys() == drawn - {"threads"}
    assert three.host().ranges.keys() == drawn - {"threads", "tail_cv"}
    assert three.host().values()["tail_cv"] == 0.3
    assert four.host().ranges["threads"] == (2.0, 3.0), "a range that is said is drawn from"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("share: 2", "shares: 2", "hosts.yaml:9: unknown key 'kinds.0.shares'; did you mean 'share'?"),
        ("like: one", "like: none", "like 'none'"),
        ("name: two", "name: one", "two 'one'"),
        ("threads: 8", "treads: 8", "there is no constant 'treads'"),
        ("tail_cv: [0.1, 0.2]", "tail_cv: [0.2, 0.1]", "hosts one"),
        ("thesis-host", "no-host", "no host profile 'no-host'"),
        ("safety: responsive", "safety: titanium", "no safety profile 'titanium'"),
        ("share: 1", "share: 0", "share"),
        ("work: 0.07", "work: 0.0", "hosts.yaml:8: kinds.0.work is"),
        ("work: 0.07", "work: 1.0", "hosts.yaml:8: kinds.0.work is"),
    ],
)
def test_what_cannot_be_is_one_line(old, new, said, tmp_path):
    with pytest.raises(ConfigError) as refused:
        load_hosts(written(tmp_path, HOSTS.replace(old, new)))
    assert said in str(refused.value)


def test_each_kind_learns_by_its_work(tmp_path):
    hosts = load_hosts(written(tmp_path, HOSTS + "  - {name: three, like: one, work: 0.2, share: 1}\n"))
    assert [HostShare.of(kind, 1, hosts).simulated((0,)).work for kind in hosts.kinds] == [0.07, 0.07, 0.2]
    without = load_hosts(written(tmp_path, HOSTS.replace("    work: 0.07\n", "")))
    assert HostShare.of(without.kinds[0], 1, without).simulated((0,)).work == WORK


def test_a_profile_beside_the_file_is_found(tmp_path):
    (tmp_path / "mine.yaml").write_text(load_profile("two-core-nginx").model_dump_json())
    hosts = load_hosts(written(tmp_path, HOSTS.replace("thesis-host", "mine.yaml").replace("threads: 8", "threads: 2")))
    assert hosts.kinds[0].host().name == "two-core-nginx"


def test_a_calibrated_host_of_the_users_gets_half(tmp_path):
    profile = load_profile("two-core-nginx")
    hosts = load_hosts(written(tmp_path, HOSTS)).with_profiles({"two-core-nginx": profile})
    assert [(kind.name, count) for kind, count in present(hosts, 12)] == [("one", 4), ("two", 2), (profile.name, 6)]
    assert hosts.kinds[-1].weight is Weight.MINIMUM, "as serve gives it"
    with pytest.raises(ConfigError, match="rename"):
        hosts.with_profiles({"two-core-nginx": profile})


def test_users_hosts_share_their_half(tmp_path):
    profile, hosts = load_profile("two-core-nginx"), load_hosts(written(tmp_path, HOSTS))
    mine = {f"{name}.yaml": profile.model_copy(update={"name": name}) for name in ("a", "b", "c")}
    counts = {kind.name: count for kind, count in present(hosts.with_profiles(mine), 60)}
    assert counts == {"one": 20, "two": 10, "a": 10, "b": 10, "c": 10}
    with pytest.raises(ConfigError, match=r"my host\.yaml"):
        hosts.with_profiles({"my host.yaml": profile.model_copy(update={"name": "my host"})})


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1152])
def test_all_hosts_are_spread_over_kinds(count):
    got = spread(count, [2.0, 3.0, 0.01])
    assert sum(got) == count
    assert min(got) >= (1 if count >= 3 else 0)


def test_no_two_runs_or_blocks_share_seeds():
    blocks = [(first_seed(seed, 1 << 14, block), 1 << 14) for seed in (0, 1, (1 << 20) - 1) for block in (0, 1, 63)]
    ends = sorted((first, first + count) for first, count in blocks)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    assert ends[-1][1] <= validation_seed(0)
    assert all(kind_of(first) is SeedKind.TRAINING for first, _ in ends)
    for seed, count in ((1 << 20, 1), (-1, 1), (0, (1 << 14) + 1)):
        with pytest.raises(ConfigError):
            first_seed(seed, count)


def test_validation_seeds_are_never_evaluation_seeds():
    assert {kind_of(validation_seed(number)) for number in range(100)} == {SeedKind.TRAINING}


def test_small_testbeds_have_all_kinds_together():
    """320 hosts on 64 testbeds are 5 on each, of 14 kinds."""
    hosts = load_hosts()
    parts = dealt(hosts, 5, 64)
    assert [sum(number for _, number in part) for part in parts] == [5] * 64
    together = Counter()
    for part in parts:
        together.update({kind.name: number for kind, number in part})
    assert together == {kind.name: number for kind, number in present(hosts, 320)}
    assert len(together) == len(hosts.kinds)
    assert dealt(hosts, 320, 1) == [present(hosts, 320)]
