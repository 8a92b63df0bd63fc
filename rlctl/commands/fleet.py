"""`rlctl fleet`: a simulated fleet under per-host controllers, and a new bundle rolled out over it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlctl.agents import catalogue
from rlctl.agents.training.cluster.connection import check_ray, check_reachable
from rlctl.bench.lineup import NEEDS_MODEL, refuse_models
from rlctl.commands.arguments import add_ray, distinct_policies, listed, number, positive, positive_int
from rlctl.commands.outputs import add_json, check_outputs, files_first, write_json
from rlctl.envs.errors import ConfigError
from rlctl.fleet.canary import RolloutOutcome, roll_out
from rlctl.fleet.config import Fleet, load_fleet
from rlctl.fleet.fleet_score import as_json
from rlctl.fleet.plan import FleetPlan, RolloutPlan
from rlctl.fleet.report import write_report
from rlctl.fleet.simulation import pieces_of, run_fleet
from rlctl.fleet.table import tables
from rlctl.safety.profile import load_profile
from rlctl.work.progress import progress, say
from rlctl.work.workforce import workforce

EXAMPLES = """examples:
  rlctl fleet run
  rlctl fleet run --hosts 100 --hours 2 --managers ppo,out/my-policy,prm-hybrid-tuned --report out/fleet
  rlctl fleet run --ray auto --json fleet.json
  rlctl fleet canary --from prm-hybrid-tuned --to ppo
  rlctl fleet canary --from ppo --to out/my-policy --hosts 200 --json

`fleet canary` exits with 0 when the bundle was promoted and with 1 when it was rolled back.
"""

MANAGERS = "prm-hybrid-tuned,greedy-shield,ppo,frozen"
RAY = "on a Ray cluster, with the same result: local starts one here, auto is this machine's, or HOST:PORT"


SEED = number(int, lambda value: 0 <= value < 2**62, "is no seed; give 0 or more")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    compared = actions.add_parser("run", help="managers on the same fleet, side by side")
    compared.add_argument(
        "--managers",
        default=MANAGERS,
        metavar="A,B,...",
        help=f"names, or folders of bundles with a slash in them; others are compared with the first ({MANAGERS})",
    )
    compared.add_argument("--hours", type=positive, metavar="H", help="in quarters (default: the fleet's, a day)")
    compared.add_argument("--report", type=Path, metavar="DIR", help="write tables, JSON and the day as a figure here")
    canary = actions.add_parser("canary", help="roll a bundle out in stages, and back on a regression")
    canary.add_argument("--from", dest="old", required=True, metavar="MANAGER|BUNDLE", help="what all hosts have")
    canary.add_argument("--to", dest="new", required=True, metavar="BUNDLE", help="what is rolled out")
    for one in (compared, canary):
        one.add_argument("--fleet", default="default", metavar="NAME|FILE", help="default: default")
        one.add_argument("--hosts", type=positive_int, metavar="N", help="default: the fleet's")
        one.add_argument("--shield", metavar="NAME|FILE", help="default: the fleet's")
        one.add_argument(
            "--seed",
            type=SEED,
            default=0,
            metavar="N",
            help="of the fleet (default: 0)",
        )
        one.add_argument("--workers", type=positive_int, metavar="N", help="processes (default: one for each CPU)")
        add_ray(one, RAY)
        add_json(one)


def run(args: argparse.Namespace) -> int:
    """Run the command: everything that is asked for is checked before anything is started.

    Tables go to stdout, all else to stderr.
    """
    check_ray(args.ray, "--workers", args.workers)
    check_outputs(args)
    fleet = load_fleet(args.fleet)
    return _canary(args, fleet) if args.action == "canary" else _run(args, fleet)


def _run(args: argparse.Namespace, fleet: Fleet) -> int:
    shield = load_profile(args.shield or fleet.shield)
    hosts, hours = args.hosts or fleet.hosts, args.hours or fleet.hours
    plan = FleetPlan(fleet, hosts, hours, _managers(args.managers), shield, args.seed)
    check_reachable(args.ray, plan.managers)
    say(f"fleet {fleet.name} ({fleet.digest}): {plan.hosts} hosts x {plan.windows} windows, {', '.join(plan.managers)}")
    with (
        workforce(args.workers, args.ray, logs=args.verbose > 0) as workers,
        progress(len(list(pieces_of(plan, workers.count))), "pieces of the fleet") as advance,
    ):
        outcome = run_fleet(plan, workers, done=lambda piece: advance(piece.manager))
    with files_first(lambda: args.json == "-" or print(tables(outcome), flush=True)):
        write_json(args.json, as_json(outcome))
        if args.report:
            write_report(outcome, args.report)
            say(f"report: {args.report / 'tables.md'}")
    for name, of_manager in outcome.results.items():
        for remark in of_manager.remarks:
            say(f"{name}: {remark}")
    costs = [cost for of_manager in outcome.results.values() for cost in of_manager.costs]
    cpu_seconds, peak_bytes = sum(cost.cpu_seconds for cost in costs), max(cost.peak_bytes for cost in costs)
    say(
        f"{outcome.wall_seconds:.1f} s, {cpu_seconds:.1f} s of CPU, "
        f"{outcome.workers} workers of up to {peak_bytes / 2**20:.0f} MB"
    )
    return 0


def _canary(args: argparse.Namespace, fleet: Fleet) -> int:
    shield = load_profile(args.shield or fleet.shield)
    plan = RolloutPlan(fleet, args.hosts or fleet.hosts, args.old, args.new, shield, args.seed)
    check_reachable(args.ray, (plan.old, plan.new))
    if strange := sorted({plan.old, plan.new} & (NEEDS_MODEL | catalogue.OWN_WEIGHTS.keys())):
        raise ConfigError(
            f"{', '.join(strange)}: of no bundle's kind: with a weight of BE or a threshold model of its own"
        )
    with workforce(args.workers, args.ray, logs=args.verbose > 0) as workers:
        outcome = roll_out(plan, workers, say)
    with files_first(lambda: args.json == "-" or print(_summary(outcome), flush=True)):
        write_json(args.json, outcome.as_json())
    return 1 if outcome.stopped else 0


def _summary(outcome: RolloutOutcome) -> str:
    lost = outcome.missed_windows - outcome.missed_without
    return (
        f"hosts that ever ran it: {int(outcome.ever.sum())} of {outcome.plan.hosts}, "
        f"for {outcome.host_minutes:g} host-minutes\n"
        f"windows that they missed since it began: {outcome.missed_windows}, without it {outcome.missed_without}: "
        f"{lost:+d}; BE work {outcome.be_hours:+.1f} h of BE running alone (the same hosts without the rollout)"
    )


def _managers(names: str) -> tuple[str, ...]:
    """The names, each checked by building it once."""
    asked = distinct_policies("--managers", listed(names))
    refuse_models(asked)
    for name in asked:
        catalogue.build(name)
    return asked
