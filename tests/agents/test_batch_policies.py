"""Policies of many hosts answer as their scalar twins do, or tables over many hosts would be of other policies."""

import numpy as np
import pytest

from rlctl.agents import catalogue
from rlctl.agents.batch_policies import EachHost, batch_policy
from rlctl.agents.batch_runner import BatchObservation
from rlctl.envs.observation import Observer
from rlctl.safety.batch_shield import BatchShield
from rlctl.safety.profile import load_profile
from tests.doubles.many_hosts import TICK_SECONDS, ManyHosts

HOSTS, TICKS = 5, 120


class Bed:
    """Hosts of many sizes about their peak, and what a policy sees of them; the shield rules on all."""

    def __init__(self):
        self.hosts = ManyHosts(HOSTS)
        self.shield = BatchShield(load_profile("responsive"), self.hosts.limits, HOSTS)
        self.current = self.hosts.limits.safe

    def seen(self, *, masked):
        self.hosts.step(self.current)
        self.readings = self.hosts.read()
        mask = self.shield.mask(self.readings, self.current) if masked else None
        return BatchObservation(self.readings, self.current, mask, self.hosts.telemetry)

    def apply(self, proposed, *, shielded):
        self.current = proposed
        if shielded:
            self.current = self.shield.rule(self.readings, self.current, proposed)


def same(one, other):
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


NAMES = ("greedy-shield", "ppo", "ppo-bare", "static", "none")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "ppo")) for name in NAMES])
def test_each_host_asks_as_the_scalar_policy(name):
    if reason := catalogue.lacking(name):
        pytest.skip(reason)
    bed = Bed()
    batch = batch_policy(name, bed.hosts.limits, TICK_SECONDS)
    each = EachHost([catalogue.build(name) for _ in range(HOSTS)], bed.hosts.limits, TICK_SECONDS)
    assert not isinstance(batch, EachHost)
    assert same(batch.begin(), each.begin())
    asked = []
    for _ in range(TICKS):
        seen = bed.seen(masked=batch.masked)
        together, alone = batch.act(seen), each.act(seen)
        assert same(together.proposed, alone.proposed)
        asked.append(together.proposed)
        bed.apply(together.proposed, shielded=batch.shielded)
    different = {one.quota_cpus.tobytes() + one.frozen.tobytes() for one in asked}
    assert len(different) > 50 or not name.startswith(("prm", "ppo"))  # or they had nothing to be the same in
    assert (batch.shielded, batch.masked) == (each.shielded, each.masked)
    assert batch.remarks == each.remarks


@pytest.mark.parametrize("name", ["prm-hybrid-tuned", "ppo"])
def test_beginning_anew_leaves_nothing_of_before(name):
    if reason := catalogue.lacking(name):
        pytest.skip(reason)
    bed = Bed()
    old, fresh = (batch_policy(name, bed.hosts.limits, TICK_SECONDS) for _ in range(2))
    for _ in range(30):
        seen = bed.seen(masked=old.masked)
        bed.apply(old.act(seen).proposed, shielded=old.shielded)
    old.begin()
    for _ in range(20):
        seen = bed.seen(masked=old.masked)
        answer, anew = old.act(seen), fresh.act(seen)
        assert same(answer.proposed, anew.proposed)
        bed.apply(answer.proposed, shielded=old.shielded)


def test_without_batch_version_each_host_is_asked():
    bed = Bed()
    policy = batch_policy("heracles", bed.hosts.limits, TICK_SECONDS)
    policy.begin()
    scalars = [catalogue.build("heracles") for _ in range(HOSTS)]
    observers = [Observer(one, TICK_SECONDS) for one in bed.hosts.limits.each]
    for scalar, limits in zip(scalars, bed.hosts.limits.each, strict=True):
        scalar.start(limits)
    for _ in range(30):
        seen = bed.seen(masked=False)
        proposed = policy.act(seen).proposed
        for host, telemetry in enumerate(seen.telemetry()):
            observed = observers[host].observe(telemetry, seen.current.host(host))
            assert proposed.host(host) == scalars[host].act(observed)
        bed.apply(proposed, shielded=False)


def test_answer_that_is_no_number_is_told(make_bundle, linear, tmp_path):
    from rlctl.agents.served.card import ObservationTable
    from rlctl.envs.actions import MOVES
    from rlctl.envs.features import FRAME_SIZE
    from rlctl.envs.observation import LAGS

    weight, end = np.zeros((len(MOVES), ObservationTable.here(LAGS).size)), FRAME_SIZE * len(LAGS)
    weight[:, end - 1] = 3e38  # the latency's age, -1 where there is none: -3e38, and twice that is no number
    weight[:, end - 2] = -3e38  # the flag of be_cpus, which is always there
    bundle = make_bundle(tmp_path / "bad", policy=linear(weight, np.zeros(len(MOVES))))
    bed = Bed()
    policy = batch_policy(f"{bundle}", bed.hosts.limits, TICK_SECONDS)
    answer = policy.act(bed.seen(masked=True))
    assert answer.failed.any()
    assert answer.proposed.frozen[answer.failed].all()
