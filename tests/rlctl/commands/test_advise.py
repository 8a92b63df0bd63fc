"""Advice: what a log says of a host is found again, and what it does not say stays wide."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rlctl.advice.page import html, sections, text
from rlctl.agents import catalogue
from rlctl.agents.seat import Seat
from rlctl.cli import main
from rlctl.commands.advise import Question, answer
from rlctl.envs.sim.loads import from_config
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.workload import Weight
from rlctl.loop.control import Controller
from rlctl.loop.record import TickLog
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.ticklog.header import header_of

TICKS = 400
LOAD = {"kind": "sinusoid", "low": 0.2, "high": 0.8, "period": 100}
BEGAN = 1.8e9


def watch(folder, profile, policy):
    """A log of a simulated host under a policy, with BE at the least weight; BE's work as it was, in percent."""
    host = load_host(profile) if isinstance(profile, str) else profile
    plant, shielded = SimPlant(host, from_config(LOAD), TICKS, seed=3), policy != "none"
    decider = catalogue.build(policy)
    shield = Shield(load_profile("responsive"), plant.limits) if shielded else None
    log = TickLog(folder / "ticks.jsonl")
    log.header = header_of(plant, decider, shield)
    work = []

    class Recorder:
        def write(self, tick):
            work.append(float(plant.batch.window.be_work_ratio[0]))
            log.write(replace(tick, wall_seconds=BEGAN + tick.index))

    plant.set_weight(Weight.MINIMUM)
    Controller(plant, decider, shield, Recorder()).run(ticks=TICKS)
    log.close()
    return folder, 100.0 * float(np.mean(work))


def would_have(profile, policy):
    """QoS and BE percent of a policy on that very host, behind the shield as in a service."""
    plant = SimPlant(load_host(profile), from_config(LOAD), TICKS, seed=3)
    plant.set_weight(Weight.MINIMUM)
    decider = catalogue.build(policy)
    shield = Shield(load_profile("responsive"), plant.limits)
    seat = Seat(decider, shield, plant.limits, 1.0)
    plant.apply(seat.start())
    held, work = [], []
    for _ in range(TICKS):
        plant.wait()
        held.append(not plant.batch.truth().missed[0])
        work.append(float(plant.batch.window.be_work_ratio[0]))
        plant.apply(seat.decide(plant.read(), plant.current).verdict.allocation)
    return 100.0 * float(np.mean(held)), 100.0 * float(np.mean(work))


def asked(log, policies):
    question = Question(log, policies, None, Weight.MINIMUM, None, 0.95, 1.0)
    return answer(question)


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["two-core-nginx", "capped-link"])
@pytest.mark.parametrize("policy", ["none", "frozen"])
def test_what_be_could_have_had_is_within_the_interval(tmp_path, profile, policy):
    log, _ = watch(tmp_path, profile, policy)
    advice = asked(log, ("weights", "prm-hybrid-tuned"))
    assert advice.within_twice_percent > 75.0
    for option in advice.options:
        _, be = would_have(profile, option.policy)
        assert option.be_percent.low * 0.85 - 1.0 <= be <= option.be_percent.high * 1.15 + 1.0, option


def test_which_cpus_are_bes_own_is_in_the_log(tmp_path):
    """The LC on one CPU and BE on another share none, though BE has no more of them."""
    shared = load_host("two-core-nginx")
    own = shared.be.model_copy(update={"own_cpus": 1.0, "shared_cpus": 0.0, "host_cpus": 1.0})
    apart = shared.model_copy(update={"be": own})
    watch(tmp_path, apart, "frozen")
    assert asked(tmp_path, ("frozen",)).watched.record.own_cpus == 1.0


def test_a_page_says_what_was_seen_and_what_could_be(tmp_path, capsys):
    log, _ = watch(tmp_path, "two-core-nginx", "frozen")
    code = main(
        [
            "advise",
            str(log),
            "--policies",
            "frozen,weights",
            "--html",
            str(tmp_path / "a.html"),
            "--json",
            str(tmp_path / "a.json"),
        ]
    )
    out = capsys.readouterr().out
    assert code == 0
    assert "under frozen; BE may have 1 CPU, the LC has 1; target p95 of 10 ms" in out
    assert "BE never ran beside the LC in this log" in out
    assert "best with at most 1 % of windows missed: " in out
    assert "no target below" in out
    assert "at least" in out
    plain = json.loads((tmp_path / "a.json").read_text())
    assert [one["policy"] for one in plain["options"]] == ["frozen", "weights"]
    assert plain["options"][0]["be_percent"]["mean"] == pytest.approx(0.0, abs=1.0)
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "http" not in page.replace("<!doctype html>", ""), "needs nothing but itself"
    assert page.count("<h2>") == 4


def test_several_hosts_are_added_up(tmp_path, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        watch(tmp_path / name, "two-core-nginx", "frozen")
    logs = [str(tmp_path / name) for name in ("one", "two")]
    assert main(["advise", *logs, "--policies", "weights", "--workers", "1", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [one["log"] for one in plain["hosts"]] == logs
    assert main(["advise", *logs, "--policies", "weights", "--workers", "2"]) == 0
    assert "2 hosts: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 78, "name a LOG"),
        (["nowhere"], 78, "nowhere"),
        (["--policies", "nobody"], 78, "nobody"),
        (["--quantile", "100"], 78, "below 100"),
        (["--shield", "nothing"], 78, "nothing"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, words, code, said):
    if words and words[0].startswith("--"):
        watch(tmp_path, "two-core-nginx", "frozen")
        words = [str(tmp_path), *words]
    assert main(["advise", *words]) == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_log_that_is_too_short_is_told(tmp_path, capsys):
    log, _ = watch(tmp_path, "two-core-nginx", "frozen")
    lines = (log / "ticks.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "short.jsonl").write_bytes(b"".join(lines[:30]))
    assert main(["advise", str(tmp_path / "short.jsonl")]) == 78
    assert "60 are needed" in capsys.readouterr().err
    (tmp_path / "bare.jsonl").write_bytes(b"".join(lines[1:]))
    assert main(["advise", str(tmp_path / "bare.jsonl")]) == 1
    assert "says what host it is of" in capsys.readouterr().err


def test_text_of_a_log_is_escaped(tmp_path):
    log, _ = watch(tmp_path, "two-core-nginx", "frozen")
    advice = asked(log, ("frozen",))
    page = sections("<script>", advice)
    assert "<script>" not in html(page)
    assert "<script>" in text(page)
