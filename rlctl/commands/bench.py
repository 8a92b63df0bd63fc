"""`rlctl bench`: managers side by side on the live host."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.envs.errors import ConfigError
from rlctl.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from rlctl.bench import Outcome, Plan

__all__ = ["add_parser", "run"]

EXAMPLES = """examples:
  rlctl bench --plant host --scenario live-nginx --managers none,weights,frozen,greedy-shield
  rlctl bench --plant host --scenario live-memcached --managers all --repeats 3 --json out.json --report out/
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = subparsers.add_parser(
        "bench",
        help="managers on the same scenario, side by side",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--plant", choices=("host",), default="host", help="what is controlled (default: host)")
    parser.add_argument("--scenario", default="live-nginx", metavar="NAME|FILE", help="default: live-nginx")
    parser.add_argument("--managers", default="all", metavar="A,B,...", help="names from `rlctl managers`, or all")
    parser.add_argument("--repeats", type=_positive_int, default=3, metavar="N", help="runs of each (default: 3)")
    parser.add_argument("--duration", type=_positive, metavar="SECONDS", help="of one run (default: the scenario's)")
    parser.add_argument("--shield", default="responsive", metavar="NAME|FILE", help="default: responsive")
    parser.add_argument("--time-scale", type=_positive, metavar="X", help="divide published periods by X")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result; - is stdout")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write plots, table and tick logs here")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and touch nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; the table goes to stdout, all else to stderr."""
    from rlctl.bench import NEEDS_MODEL, measure, profile
    from rlctl.bench_report import write_report
    from rlctl.envs.testbed.session import Testbed
    from rlctl.table import render, score_rows

    plan = plan_of(args)
    _say(_effective(plan))
    if args.dry_run:
        return 0
    with Testbed(plan.scenario.testbed(), _say) as bed:
        if NEEDS_MODEL & set(plan.managers):
            _say(f"recording the LC alone for PRM's threshold model, {plan.scenario.duration_seconds:g} s ...")
            plan = replace(plan, threshold_model=profile(plan, bed))
        _say("measuring BE alone ...")
        with _progress(plan) as done:
            outcome = measure(plan, bed, done)
    if args.json and str(args.json) != "-":
        outcome.write_json(args.json)
    if args.report:
        write_report(outcome, args.report)
    print(json.dumps(outcome.as_json()) if str(args.json) == "-" else render(score_rows(outcome.scores)))
    _remarks(outcome)
    return 0


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan that the arguments ask for, all names checked before anything is started.

    Raises:
        ConfigError: An unknown scenario, manager or profile.
    """
    from rlctl.agents import catalogue
    from rlctl.bench import Plan
    from rlctl.safety.profile import load_profile

    scenario = _adjusted(load_scenario(args.scenario), args.duration, args.time_scale)
    names = (
        catalogue.NAMES if args.managers == "all" else tuple(n.strip() for n in args.managers.split(",") if n.strip())
    )
    if not names:
        raise ConfigError("--managers names none; see `rlctl managers`")
    if len(set(names)) < len(names):
        raise ConfigError("--managers names one twice")
    profile = load_profile(args.shield).scaled(scenario.time_scale)
    plan = Plan(scenario, tuple(names), args.repeats, profile)
    for name in plan.managers:
        plan.policy(name)
    return plan


def _adjusted(scenario: Scenario, duration: float | None, time_scale: float | None) -> Scenario:
    changes = {"duration_seconds": duration, "time_scale": time_scale}
    return scenario.model_copy(update={key: value for key, value in changes.items() if value is not None})


def _effective(plan: Plan) -> str:
    s = plan.scenario
    minutes = len(plan.managers) * plan.repeats * (s.duration_seconds + 4.0) / 60.0
    return (
        f"{s.name}: {s.description}\n"
        f"managers {', '.join(plan.managers)}; {plan.repeats} x {s.duration_seconds:g} s each, interleaved, "
        f"about {minutes:.0f} min\n"
        f"tick {s.tick_seconds:g} s; p{s.slo.quantile_percent:g} <= {s.slo.target_milliseconds:g} ms; "
        f"BE weight {s.be.weight}; shield {plan.profile.name} ({plan.profile.digest}); "
        f"published periods / {s.time_scale:g}; a published core is {s.core_cpus:g} CPU"
    )


@contextlib.contextmanager
def _progress(plan: Plan) -> Iterator[Callable[[str, int], None]]:
    from rlctl.progress import progress

    with progress(len(plan.managers) * plan.repeats, "runs") as advance:
        yield lambda name, repeat: advance(f"{name} #{repeat + 1}")


def _remarks(outcome: Outcome) -> None:
    for name, remarks in outcome.remarks.items():
        for remark in remarks:
            _say(f"{name}: {remark}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
