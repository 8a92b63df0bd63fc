"""`target_milliseconds: auto`: the proposal is of the LC's own tail, and says what it stands on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlctl.config.serve import ServeConfig, load_config
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.telemetry import (
    LC_IDLE,
    NO_TARGET_SECONDS,
    TARGET_PROPOSED,
    Missing,
    Quantile,
    Telemetry,
    Value,
    Why,
)
from rlctl.log.record import Tick
from rlctl.safety.profile import load_profile
from rlctl.safety.verdict import Reason, Verdict
from rlctl.serve.auto_target import (
    FIRST_WINDOWS,
    LEAST_SECONDS,
    MOST_WINDOWS,
    TARGETS,
    AutoTargets,
    TargetProposal,
    TargetWatch,
    quantile_bounds,
)
from rlctl.serve.policy_setup import PolicySetup
from tests.doubles.clock import Countdown
from tests.doubles.host import LC, FakeHost, run_service
from tests.doubles.tick_logs import read_ticks

LIMITS = Limits(cpus=2)
FULL = Allocation(UNLIMITED, 2)
IDLE = Missing(Why.NO_DATA, "no request completed")


def lc(second: float, tail_seconds: float | None, rps: float = 50.0, **more: Value) -> Telemetry:
    tail = IDLE if tail_seconds is None else Quantile(tail_seconds, samples=50, window_seconds=1.0)
    counters = {"done_rps": Value(rps if tail_seconds else 0.0), LC_IDLE: Value(float(tail_seconds is None)), **more}
    return Telemetry(float(second), NO_TARGET_SECONDS, tail_latency_seconds=tail, counters=counters)


def go(
    watch: TargetWatch, seconds: int, *, alone: float | None = 0.004, beside: float = 0.004, rps: float = 50.0
) -> Iterator[tuple[int, bool]]:
    """The windows of an LC whose BE obeys: second, and whether BE is held in the next one."""
    held = False
    for second in range(seconds):
        watch.observe(
            lc(second, alone if held or alone is None else beside, rps), held=held, free=not held, wall_seconds=0.0
        )
        held = watch.holds
        yield second, held


def final(**options: float) -> TargetProposal:
    watch = TargetWatch("lc", 0.0, 1.0)
    for _ in go(watch, 1000, **options):  # type: ignore[arg-type]
        if watch.done:
            break
    assert watch.proposal is not None
    return watch.proposal


def test_harm_of_free_be_is_not_baked_in() -> None:
    proposal = final(alone=0.004, beside=0.040)
    assert proposal.target_seconds == pytest.approx(0.008)
    assert proposal.free_seconds == pytest.approx(0.040)
    assert "with BE free its tail was 40 ms" in str(proposal)
    assert "BE's doing and no part of the target" in str(proposal)


def test_innocent_be_is_not_accused() -> None:
    assert "BE's doing" not in str(final())
    one_accident = replace(final(), free_seconds=0.5, free_low_seconds=0.004)
    assert "BE's doing" not in str(one_accident), "the highest of few windows says little"


def test_first_guess_comes_with_first_block() -> None:
    watch = TargetWatch("lc", 0.0, 1.0)
    guessed = next(second for second, _ in go(watch, 100) if watch.proposal)
    assert guessed <= FIRST_WINDOWS + 5
    assert not watch.done


def test_be_is_free_most_of_the_time() -> None:
    watch = TargetWatch("lc", 0.0, 1.0)
    held = [held for _, held in go(watch, 300)]
    assert watch.done
    assert sum(held) < 90
    assert not any(held[-30:])


def test_idle_lc_leaves_be_free() -> None:
    watch = TargetWatch("lc", 0.0, 1.0)
    assert not any(held for _, held in go(watch, 200, alone=None))
    assert watch.proposal is None


def test_few_requests_take_longer() -> None:
    watch = TargetWatch("lc", 0.0, 1.0)
    assert not any(watch.done for _ in go(watch, 300, rps=1.0))
    assert "requests" in watch.progress


@pytest.mark.parametrize(
    ("own", "least", "target"), [(0.0051, 0.0, 0.011), (0.001, 0.008, 0.008), (0.05, 0.008, 0.1), (1.234, 0.0, 2.5)]
)
def test_target_is_round_and_can_be_judged(own: float, least: float, target: float) -> None:
    proposal = replace(final(), own_seconds=own, least_seconds=least)
    assert proposal.target_seconds == pytest.approx(target)
    assert ("the least that its latency source can judge" in str(proposal)) == (least > 2 * own)


def test_bounds_of_a_quantile_hold_as_often() -> None:
    assert quantile_bounds(60, 0.95, 0.05) == (53, 59)
    assert quantile_bounds(15, 0.95, 0.05)[1] == 14, "the highest, where it is not enough"
    assert quantile_bounds(1, 0.95, 0.05) == (0, 0)


def test_bounds_of_the_most_windows() -> None:
    low, high = quantile_bounds(MOST_WINDOWS, 0.95, 0.05)
    assert 930 < low < 950 < high < 970
    watch = TargetWatch("lc", 0.0, 0.1)
    assert any(watch.done for _ in go(watch, 5000, rps=100.0))


def test_tail_that_reads_0_gets_a_target() -> None:
    assert replace(final(), own_seconds=0.0, least_seconds=0.0).target_seconds == LEAST_SECONDS


def test_lc_without_latency_gets_no_proposal(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO)
    auto = config(slo={"target_milliseconds": "auto"})
    assert not AutoTargets(auto, tmp_path, LIMITS, pytest.fail, waiting={"lc"}).watches
    assert "no latency is known" in caplog.text


def test_load_beyond_the_proposal_is_told(caplog: pytest.LogCaptureFixture) -> None:
    watch = TargetWatch("lc", 0.0, 1.0, final(rps=50.0))
    for second in range(20):
        late = lc(second, 0.1, rps=100.0).but(target_seconds=0.008)
        watch.observe(late, held=True, free=False, wall_seconds=0.0)
    assert caplog.text.count("misses its proposed target with BE held, at 100 requests a second") == 1


def config(**of_lc: object) -> ServeConfig:
    return ServeConfig.model_validate({
        "lc": LC | {"slo": {"target_milliseconds": "auto"}} | of_lc,
        "be": {"workloads": [{"kind": "cgroup", "path": "/batch"}]},
    })  # fmt: skip


def tick(index: int, before: Allocation, tail_seconds: float) -> Tick:
    return Tick(index, 0.0, lc(index, tail_seconds), before, FULL, Verdict(FULL, FULL), FULL, "ppo")


def learn(folder: Path, made: ServeConfig, held: Allocation = LIMITS.minimum) -> list[tuple[str, float, bool]]:
    told: list[tuple[str, float, bool]] = []
    targets = AutoTargets(made, folder, LIMITS, lambda name, one, stays: told.append((name, one.target_seconds, stays)))
    before = FULL
    for second in range(300):
        targets.write(tick(second, before, 0.004))
        bounds = targets.bounds(LIMITS)
        before = held if bounds else FULL
    return told


def test_a_restart_remembers_the_proposal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert learn(tmp_path, config()) == [("lc", 0.008, False), ("lc", 0.008, True)]
    again = AutoTargets(config(), tmp_path, LIMITS, pytest.fail)
    assert again.watches["lc"].done
    assert again.bounds(LIMITS) == ()
    assert "target auto (proposed" in caplog.text
    assert f"remove {tmp_path / TARGETS}" in caplog.text


@pytest.mark.parametrize("held", [Allocation(0.01, LIMITS.cpus), Allocation(0.011, 1)], ids=["no cpuset", "11 groups"])
def test_what_reads_back_as_least_is_held(tmp_path: Path, held: Allocation) -> None:
    """Nothing was ever learned there, and BE was held for good."""
    assert learn(tmp_path, config(), held)[-1] == ("lc", 0.008, True)


def test_a_proposal_is_for_the_same_lc_only(tmp_path: Path) -> None:
    learn(tmp_path, config())
    other = config(workload={"kind": "cgroup", "path": "/other"})
    assert AutoTargets(other, tmp_path, LIMITS, pytest.fail).watches["lc"].proposal is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 1, "lcs": {"lc": {}}}'])
def test_a_damaged_file_costs_no_start(tmp_path: Path, text: str) -> None:
    (tmp_path / TARGETS).write_text(text)
    assert AutoTargets(config(), tmp_path, LIMITS, pytest.fail).watches["lc"].proposal is None


def test_a_kept_target_of_nothing_is_refused(tmp_path: Path) -> None:
    learn(tmp_path, config())
    plain = json.loads((tmp_path / TARGETS).read_text())
    plain["lcs"]["lc"]["proposal"]["own_seconds"] = -1.0
    (tmp_path / TARGETS).write_text(json.dumps(plain))
    assert AutoTargets(config(), tmp_path, LIMITS, pytest.fail).watches["lc"].proposal is None


def test_a_dry_run_learns_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = AutoTargets(config(), None, LIMITS, pytest.fail, dry_run=True).watches["lc"]
    assert not any(held for _, held in go(watch, 100))
    assert watch.proposal is None
    assert "a dry run does not hold BE" in caplog.text


def test_a_told_target_is_not_watched(tmp_path: Path) -> None:
    told = config(slo={"target_milliseconds": 10})
    assert not AutoTargets(told, tmp_path, LIMITS, pytest.fail).watches


def test_outputs_name_the_target() -> None:
    none = lc(0, 0.004)
    assert none.target_in_words == "auto (none yet)"
    assert none.missed is None, "without a target nothing is met"
    proposed = none.but(target_seconds=0.012, counters={TARGET_PROPOSED: Value(1.0)})
    assert proposed.target_in_words == "12 ms, auto (proposed)"
    assert proposed.missed is False
    assert none.but(target_seconds=0.012).target_in_words == "12 ms"


def test_the_file_takes_auto(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(json.dumps(config().model_dump(mode="json", include={"lc", "be"}, exclude_none=True)))
    assert load_config(path).lcs["lc"].slo.slo.target_seconds == NO_TARGET_SECONDS


class Proposing(FakeHost):
    """A host whose LC has a tail of its own, whatever the target is."""

    def set_target(self, lc: str, target_seconds: float) -> None:
        self.targets = [*getattr(self, "targets", []), (lc, target_seconds)]

    def read(self) -> Telemetry:
        read = super().read()
        return read.but(tail_latency_seconds=Quantile(0.003, samples=50, window_seconds=1.0))


def test_service_holds_be_and_takes_the_target(always, tmp_path: Path, caplog) -> None:  # type: ignore[no-untyped-def]
    caplog.set_level(logging.INFO, logger="rlctl")
    host = Proposing(LIMITS, loads=(0.1,))
    setup = PolicySetup(always(lambda _: LIMITS.full), load_profile("responsive"))
    auto = LC | {"slo": {"target_milliseconds": "auto"}}
    run_service(host, setup, Countdown(300), tmp_path, lc=auto)
    assert host.targets[-1] == ("lc", 0.006)
    ticks = list(read_ticks(tmp_path / "ticks.jsonl"))
    watched = [one for one in ticks if Reason.TARGET_WATCH in {bound["reason"] for bound in one["bounds"]}]
    assert 60 <= len(watched) < 120
    assert not ticks[-1]["applied"]["frozen"]
    assert "LC lc: target auto (proposed): 6 ms, 2 times its own tail of 3 ms" in caplog.text
    assert "`--target 6ms`" in caplog.text
    run_service(host := Proposing(LIMITS, loads=(0.1,)), setup, Countdown(3), tmp_path, lc=auto)
    assert host.targets == [("lc", 0.006)], "at once, and nothing is held for it"
