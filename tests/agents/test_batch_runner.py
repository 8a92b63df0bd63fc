"""BatchPolicyRunner of many hosts come to what each host's own policy behind its own shield comes to."""

import pytest

from rlctl.agents import catalogue
from rlctl.agents.batch_policies import batch_policy
from rlctl.agents.batch_runner import BatchPolicyRunner
from rlctl.envs.actions import decode
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.observation import Observer
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.doubles.many_hosts import TICK_SECONDS, ManyHosts

HOSTS, TICKS = 6, 80
PROFILE = load_profile("responsive")


class OneHost:
    """The tick of one host, spelt out."""

    def __init__(self, name, limits, always):
        self.policy, self.limits = catalogue.build(name), limits
        self.shielded = always or self.policy.shielded
        self.shield = Shield(PROFILE, limits)
        self.observer = Observer(limits, TICK_SECONDS)
        self.policy.start(limits)

    def decide(self, telemetry, current):
        mask = self.shield.mask(telemetry, current) if self.policy.masked and self.shielded else None
        proposed = decode(self.policy.act(self.observer.observe(telemetry, current, mask)), current, self.limits)
        verdict = self.shield.rule(telemetry, current, proposed)
        if self.shielded:
            self.policy.learn_ruling(verdict)
        return verdict.allocation if self.shielded else self.limits.clip(proposed)


@pytest.fixture
def hosts():
    return ManyHosts(HOSTS, seed=1)


NAMES = (
    "greedy-shield",
    "feedforward",
    "prm-hybrid-tuned",
    "heracles",
    "ppo",
    "none",
    "parties",
    "hipster",
    "learned-table",
)


@pytest.mark.parametrize("name", [*NAMES[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[2:])])
@pytest.mark.parametrize("always", [False, True], ids=["as judged", "as served"])
def test_every_host_is_decided_on_alone(name, always, hosts):
    if reason := catalogue.lacking(name):
        pytest.skip(reason)
    runner = BatchPolicyRunner(batch_policy(name, hosts.limits, TICK_SECONDS), PROFILE, hosts.limits, always=always)
    alone = [OneHost(name, limits, always) for limits in hosts.limits.each]
    current = runner.begin()
    for tick in range(TICKS):
        hosts.step(current)
        decided = runner.decide(hosts.read(), current, hosts.telemetry)
        for host, telemetry in enumerate(hosts.telemetry()):
            assert decided.allocations.host(host) == alone[host].decide(telemetry, current.host(host)), (tick, host)
        assert not (decided.overridden & ~decided.proposed.differ(decided.allocations)).any()
        current = decided.allocations


def test_without_shield_nothing_is_ruled_nor_masked(hosts):
    runners = BatchPolicyRunner(batch_policy("greedy-shield", hosts.limits, TICK_SECONDS), None, hosts.limits)
    current = runners.begin()
    hosts.step(current)
    decided = runners.decide(hosts.read(), current)
    assert not decided.overridden.any()
    assert not decided.allocations.differ(hosts.limits.full).any()


def test_policy_is_clipped_to_its_host(hosts):
    policy = batch_policy("none", hosts.limits, TICK_SECONDS)
    small = VectorLimits([type(one)(1) for one in hosts.limits.each])
    runners = BatchPolicyRunner(policy, None, small)
    hosts.step(hosts.limits.safe)
    decided = runners.decide(hosts.read(), small.safe)
    assert decided.allocations.cpuset_cpus.tolist() == [1] * HOSTS
