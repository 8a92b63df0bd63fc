"""The shipped policy, shield and rein on a link that nobody tells the rate of: a queue that is full or not, no host."""

import math

import pytest

from rlctl.agents import catalogue
from rlctl.agents.policy_runner import PolicyRunner
from rlctl.envs.allocation import Limits
from rlctl.envs.host.reins.link_share import LinkShare
from rlctl.envs.host.reins.reins import Reins
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield

LIMITS = Limits(cpus=1, lc_cpus=1.0, least_weight=True)
MBIT = 1e6 / 8.0
FULL, CUT_RATIO = 150.0, 0.05


class Host:
    """LC and BE on a link; BE would send more than it carries, as far as the CPUs let it run."""

    limits, groups = LIMITS, ()

    def __init__(self, rate, guarded, seen, rein=Rein.LINK):
        self.rate, self.guarded = rate, guarded
        self.cpus, self.sent, self.held, self.backlog = LIMITS.full, [0.0, 0.0], math.inf, False
        share = LinkShare.of(self)
        for _ in range(2):
            share._rate.see(seen * MBIT, 1.0)
        self.reins = Reins(self, {Rein.LINK: share})
        self.reins.moves, self.reins._law.in_hand = lambda: True, rein

    def read(self):
        return self.cpus

    def apply(self, allocation, *, new_tick=True):
        self.cpus = allocation
        return allocation

    def sent_bytes(self):
        return tuple(map(int, self.sent))

    def hold(self, rate):
        self.held = math.inf if rate is None else rate

    def follow(self, groups): ...

    def close(self): ...

    def pass_second(self, second):
        """Load, latency, whether BE was cut, and what BE sent of what the link carried (Mbit/s)."""
        load = 0.275 - 0.125 * math.cos(2.0 * math.pi * second / 30.0)
        carried, lc = self.rate(second) * MBIT, load * FULL * MBIT
        wanted = 0.0 if self.cpus.frozen else 190.0 * MBIT * min(self.cpus.quota_cpus, 1.0)
        be = max(min(wanted, self.held - lc), 0.0)
        over, late = lc + be > carried, self.backlog
        cut = over and self.guarded
        be = CUT_RATIO * be if cut else min(be, (1.1 if late else 1.5) * carried - lc)
        self.backlog = over and not cut
        self.sent[0] += lc + be
        self.sent[1] += be
        return load, 0.02 if over or late else 0.0003, cut, min(be, carried - lc) / MBIT


def lived(host, seconds):
    """Windows that were missed, and what BE sent in each second."""
    shield = Shield(load_profile("measured").scale_time(15.0), LIMITS)
    runner = PolicyRunner(catalogue.build("ppo"), shield, LIMITS, 1.0, learns=True)
    level, missed, sent = host.reins.apply(runner.start()), [], []
    host.reins.read(0.0)
    for second in range(seconds):
        load, tail, cut, be = host.pass_second(second)
        if cut:
            host.reins.apply(LIMITS.safe, new_tick=False)
        telemetry = Telemetry(
            second + 1.0, 0.01, Quantile(tail, samples=300, window_seconds=1.0), load_ratio=Value(load),
            be_cpus=Value(0.1), counters=host.reins.read(second + 1.0), rein=host.reins.in_hand,
        )  # fmt: skip
        host.reins.look(telemetry, level, CUT_RATIO if cut else 1.0)
        level = host.reins.apply(runner.decide(telemetry, level, cut=cut).verdict.allocation)
        missed.append(bool(telemetry.missed))
        sent.append(be)
    return missed, sent


@pytest.mark.parametrize(("guarded", "costs"), [(False, 2), (True, 1)])
def test_halved_rate_costs_a_window_and_its_backlog(guarded, costs):
    missed, sent = lived(Host(lambda second: FULL if second < 50 else FULL / 2, guarded, seen=160.0), 60)
    assert sum(missed[45:]) == costs
    assert sum(missed) <= 4 * costs, "three trials, and the fall"
    assert sum(sent[54:]) > 0.6 * 6 * 45.0, "who is told has 45"


def test_link_that_is_back_is_used_again():
    missed, sent = lived(Host(lambda second: FULL / 2 if 30 <= second < 40 else FULL, False, seen=160.0), 90)
    assert sum(missed[40:]) == 0
    assert min(sent[70:]) > 70.0


def test_link_is_taken_at_the_first_cut():
    """Once a quota holds, no second miss comes: BE had a quarter of the link for as long as its rate stayed."""
    host = Host(lambda second: FULL, guarded=True, seen=40.0, rein=Rein.CPU)
    missed, sent = lived(host, 30)
    assert sum(missed) <= 3
    assert host.reins.in_hand is Rein.LINK
    assert min(sent[22:]) > 80.0


def test_new_link_is_found_without_a_full_queue():
    missed, sent = lived(Host(lambda second: FULL, True, seen=40.0), 60)
    assert sum(missed) <= 3
    assert min(sent[40:]) > 80.0
