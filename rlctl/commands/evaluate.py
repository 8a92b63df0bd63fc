"""`rlctl evaluate`: a bundle's scores on the suite, beside the managers that it must beat."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlctl.agents.catalogue import label
from rlctl.agents.served.bundle import load
from rlctl.agents.served.bundle_writer import add_scores
from rlctl.agents.served.card import CardScore, ScoreEstimate
from rlctl.bench.comparison import Comparison, compare
from rlctl.bench.intervals import Estimate as Measured
from rlctl.bench.participants import require_library
from rlctl.bench.scenarios import changed, require_distinct, sim_scenario
from rlctl.bench.score import SimOutcome
from rlctl.bench.sim_plan import SimPlan, run_sim
from rlctl.bench.sim_scenario import SUITE, SimScenario
from rlctl.bench.workforce import kept_at_signals, workforce
from rlctl.commands.arguments import number, positive
from rlctl.commands.options import distinct_policies, distinct_profiles, positive_int, require_names, split_names
from rlctl.commands.outputs import add_json, check_outputs, files_first, write_json
from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.log.progress import progress, say
from rlctl.report.page import render
from rlctl.report.table import difference_rows, suite_rows
from rlctl.safety.profile import DEFAULT

EXAMPLES = """examples:
  rlctl evaluate runs/ppo/1/bundle
  rlctl evaluate runs/ppo/1/bundle --scenario thesis --seeds 10 --shield measured
  rlctl evaluate runs/ppo/1/bundle --managers prm-hybrid,heracles --json scores.json --write-card

Evaluation seeds, as `rlctl bench` has them: no policy has learned on them, and the numbers are those of `rlctl bench`.
"""

RIVALS = ("frozen", "prm-hybrid-tuned", "feedforward", "greedy-shield")
SHIELDS, SEEDS = f"{DEFAULT},knee,heracles", 30


SEVERAL = number(int, lambda value: value >= 2, "seeds give no interval; at least 2 do")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    parser.add_argument("--scenario", default="all", metavar="A,B,...|all", help="default: all, the suite")
    parser.add_argument("--seeds", type=SEVERAL, default=SEEDS, metavar="N", help=f"default: {SEEDS}; at least 2")
    parser.add_argument("--shield", default=SHIELDS, metavar="A,B,...", help=f"a table for each (default: {SHIELDS})")
    parser.add_argument("--managers", metavar="A,B,...", help=f"further rivals, beside {', '.join(RIVALS)}")
    parser.add_argument("--duration", type=positive, metavar="SECONDS", help="of one run (default: the scenario's)")
    parser.add_argument("--jobs", type=positive_int, metavar="N", help="processes (default: one for each CPU)")
    parser.add_argument("--write-card", action="store_true", help="put the scores into the bundle's card.json")
    add_json(parser, "everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command: what is asked for is checked before anything is run; tables go to stdout, all else to stderr."""
    load(args.bundle)
    if args.write_card and args.duration:
        raise ConfigError("--write-card: a card holds scores of whole runs; leave out --duration")
    check_outputs(args)
    if args.write_card and not os.access(args.bundle, os.W_OK | os.X_OK):
        raise PermissionMissing(f"{args.bundle}: may not be written, and --write-card puts the scores there")
    us = str(args.bundle) if "/" in str(args.bundle) else f"./{args.bundle}"  # as a manager is named: with a slash
    distinct_profiles(require_names("--shield", args.shield))
    by_shield = {shield: _plans(args, us, shield) for shield in require_names("--shield", args.shield)}
    scored: dict[str, list[SimOutcome]] = {}
    with files_first(partial(_show, args.json, us, scored)):
        with contextlib.ExitStack() as ending:
            ending.callback(_write, args.json, us, scored)  # at an early end of what was done
            ending.enter_context(kept_at_signals())
            for shield, plans in by_shield.items():
                _measure(plans, args.jobs, scored.setdefault(shield, []))
        if args.write_card:
            add_scores(args.bundle, _card_scores(us, scored))
            say(f"{args.bundle / 'card.json'}: scores written; where it was signed: `rlctl sign` it again")
    return 0


def _write(file: str | None, us: str, scored: Mapping[str, Sequence[SimOutcome]]) -> None:
    if shields := {name: _as_json(us, outcomes) for name, outcomes in scored.items() if outcomes}:
        write_json(file, {"schema": 1, "bundle": us, "shields": shields})


def _plans(args: argparse.Namespace, us: str, shield: str) -> list[SimPlan]:
    names = distinct_policies("--managers", tuple(dict.fromkeys((us, *RIVALS, *split_names(args.managers or "")))))
    require_library(names)
    scenarios = _scenarios(args.scenario, args.duration)
    return [SimPlan.of(scenario, names, args.seeds, shield, source) for source, scenario in scenarios]


def _scenarios(wanted: str, duration: float | None) -> list[tuple[str, SimScenario]]:
    names = SUITE if wanted == "all" else require_names("--scenario", wanted)
    found = [(name, changed(sim_scenario(name), duration_seconds=duration)) for name in names]
    require_distinct([scenario.name for _, scenario in found])
    return found


def _measure(plans: Sequence[SimPlan], jobs: int | None, scored: list[SimOutcome]) -> None:
    with workforce(jobs) as workers:
        pieces = sum(len(plan.tasks(workers.count)) for plan in plans)
        with progress(pieces, f"runs under {plans[0].profile.name}") as done:
            scored.extend(run_sim(plan, workers, done) for plan in plans)  # each is there as soon as it is done


def _show(file: str | None, us: str, scored: Mapping[str, Sequence[SimOutcome]]) -> None:
    for shield, outcomes in scored.items():
        if outcomes and file != "-":
            _show_one(us, shield, outcomes)


def _show_one(us: str, shield: str, outcomes: Sequence[SimOutcome]) -> None:
    print(f"shield {shield}: QoS % of windows / BE % of running alone, with its 95 % half-width\n")
    print(render(suite_rows({one.scenario: one.scores for one in outcomes})))
    overrides = ", ".join(
        f"{one.scenario} {one.scores[label(us)].shield_override_percent.mean:.1f}" for one in outcomes
    )
    print(f"\nticks that the shield decided, %: {overrides}\n")
    print("differences on the same seeds\n")
    found = [replace(one, manager=f"{rival}: {scenario}") for rival, scenario, one in _comparisons(us, outcomes)]
    print(render(difference_rows("bundle less", found)), "", sep="\n", flush=True)


def _comparisons(us: str, outcomes: Sequence[SimOutcome]) -> Iterator[tuple[str, str, Comparison]]:
    """The bundle against each rival on each scenario: their names, and what the bundle has more."""
    for rival, name in outcomes[0].names.items():
        for outcome in outcomes if name != us else ():
            ours = next(one for one in compare(outcome, rival) if one.manager == label(us))
            yield name, outcome.scenario, ours


def _card_scores(us: str, scored: Mapping[str, Sequence[SimOutcome]]) -> dict[str, dict[str, CardScore]]:
    """Scenario to shield to score, as the card has it."""
    scores: dict[str, dict[str, CardScore]] = {}
    for shield, outcomes in scored.items():
        for one in outcomes:
            ours = one.scores[label(us)]
            scores.setdefault(one.scenario, {})[str(one.facts["shield"]) or shield] = CardScore(
                qos_guarantee_percent=_estimate(ours.qos_guarantee_percent),
                be_throughput_percent=_estimate(ours.be_throughput_percent),
                shield_override_percent=_estimate(ours.shield_override_percent),
                seeds=one.seeds,
            )
    return scores


def _estimate(measured: Measured) -> ScoreEstimate:
    low, high = measured.ci95
    return ScoreEstimate(mean=round(measured.mean, 4), ci95=(round(low, 4), round(high, 4)))


def _as_json(us: str, outcomes: Sequence[SimOutcome]) -> dict[str, object]:
    return {
        "scenarios": {one.scenario: one.as_json() for one in outcomes},
        "differences": [
            {"against": rival, "scenario": scenario, **comparison.as_json()}
            for rival, scenario, comparison in _comparisons(us, outcomes)
        ],
    }
