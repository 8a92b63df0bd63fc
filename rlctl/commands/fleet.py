"""`rlctl fleet`: a simulated fleet under per-host controllers, and a new bundle rolled out over it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands.arguments import address, listed, positive, positive_int
from rlctl.commands.outputs import check_outputs
from rlctl.envs.errors import ConfigError
from rlctl.work.progress import say

if TYPE_CHECKING:
    from rlctl.fleet.canary import RolloutOutcome
    from rlctl.fleet.config import Fleet

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """examples:
  rlctl fleet run
  rlctl fleet run --hosts 100 --hours 2 --managers ppo,out/my-policy,prm-hybrid-tuned --report out/fleet
  rlctl fleet run --ray auto --json fleet.json
  rlctl fleet canary --from prm-hybrid-tuned --to ppo
  rlctl fleet canary --from ppo --to out/my-policy --hosts 200 --json

`fleet canary` exits with 0 when the bundle was promoted and with 1 when it was rolled back.
"""

MANAGERS = "prm-hybrid-tuned,greedy-shield,ppo,frozen"


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
        one.add_argument("--seed", type=seed, default=0, metavar="N", help="of the fleet (default: 0)")
        one.add_argument("--workers", type=positive_int, metavar="N", help="processes (default: one for each CPU)")
        one.add_argument(
            "--ray",
            type=address,
            metavar="ADDRESS",
            help="on a Ray cluster, with the same result: local starts one here, auto is this machine's, or HOST:PORT",
        )
        one.add_argument(
            "--json", nargs="?", const="-", metavar="FILE", help="the result as JSON; without FILE to stdout"
        )


def run(args: argparse.Namespace) -> int:
    """Run the command; tables go to stdout, all else to stderr.

    Raises:
        ConfigError: Something that is asked for cannot be, told before anything is started.
    """
    from rlctl.fleet.config import load_fleet

    _check(args)
    fleet = load_fleet(args.fleet)
    return _canary(args, fleet) if args.action == "canary" else _run(args, fleet)


def _run(args: argparse.Namespace, fleet: Fleet) -> int:
    from rlctl.agents.training.cluster.connection import check_reachable
    from rlctl.fleet.report import write_json, write_report
    from rlctl.fleet.run import FleetPlan, run_fleet
    from rlctl.fleet.score import as_json
    from rlctl.fleet.table import tables
    from rlctl.fleet.tasks import workforce
    from rlctl.safety.profile import load_profile

    shield = load_profile(args.shield or fleet.shield)
    hosts, hours = args.hosts or fleet.hosts, args.hours or fleet.hours
    plan = FleetPlan(fleet, hosts, hours, _managers(args.managers), shield, args.seed)
    check_reachable(args.ray, plan.managers)
    say(f"fleet {fleet.name} ({fleet.digest}): {plan.hosts} hosts x {plan.windows} windows, {', '.join(plan.managers)}")
    with workforce(args.ray, args.workers, say, logs=args.verbose > 0) as (workers, work):
        outcome = run_fleet(plan, workers, work)
    found = as_json(outcome)
    if args.json != "-":
        print(tables(outcome), flush=True)
    else:
        print(json.dumps(found))
    if args.json not in (None, "-"):
        write_json(found, Path(args.json))
    if args.report:
        write_report(outcome, args.report)
        say(f"report: {args.report / 'tables.md'}")
    for name, one in outcome.runs.items():
        for remark in one.remarks:
            say(f"{name}: {remark}")
    cpu = sum(cost.cpu_seconds for one in outcome.runs.values() for cost in one.costs)
    peak = max(cost.peak_bytes for one in outcome.runs.values() for cost in one.costs)
    say(f"{outcome.wall_seconds:.1f} s, {cpu:.1f} s of CPU, {outcome.workers} workers of up to {peak / 2**20:.0f} MB")
    return 0


def _canary(args: argparse.Namespace, fleet: Fleet) -> int:
    from rlctl.agents.training.cluster.connection import check_reachable
    from rlctl.fleet.canary import roll_out
    from rlctl.fleet.config import RolloutPlan
    from rlctl.fleet.report import write_json
    from rlctl.fleet.tasks import workforce
    from rlctl.safety.profile import load_profile

    shield = load_profile(args.shield or fleet.shield)
    plan = RolloutPlan(fleet, args.hosts or fleet.hosts, args.old, args.new, shield, args.seed)
    check_reachable(args.ray, (plan.old, plan.new))
    told = say if args.json == "-" else _shown
    with workforce(args.ray, args.workers, say, logs=args.verbose > 0) as (workers, work):
        outcome = roll_out(plan, workers, work, told)
    if args.json == "-":
        print(json.dumps(outcome.as_json()))
    else:
        print(_summary(outcome), flush=True)
    if args.json not in (None, "-"):
        write_json(outcome.as_json(), Path(args.json))
    return 1 if outcome.stopped else 0


def _summary(outcome: RolloutOutcome) -> str:
    lost = outcome.missed_windows - outcome.missed_without
    return (
        f"hosts that ever ran it: {int(outcome.ever.sum())} of {outcome.plan.hosts}, "
        f"for {outcome.host_minutes:g} host-minutes\n"
        f"windows that they missed since it began: {outcome.missed_windows}, without it {outcome.missed_without}: "
        f"{lost:+d}; BE work {outcome.be_hours:+.1f} h of BE running alone (the same hosts without the rollout)"
    )


def _shown(line: str) -> None:
    print(line, flush=True)


def _managers(given: str) -> tuple[str, ...]:
    """The names, each checked by building it once.

    Raises:
        ConfigError: None, or one twice, or one that a fleet cannot have.
    """
    from rlctl.agents import catalogue
    from rlctl.bench.lineup import NEEDS_MODEL

    names = listed(given)
    if not names:
        raise ConfigError("--managers names none; see `rlctl managers`")
    if len({catalogue.label(name) for name in names}) < len(names):
        raise ConfigError("--managers names one twice; a bundle goes by the name of its folder")
    if lacking := sorted(NEEDS_MODEL & set(names)):
        raise ConfigError(f"{', '.join(lacking)}: a threshold model for each host is needed, which a fleet has not")
    for name in names:
        catalogue.build(name)
    return names


def _check(args: argparse.Namespace) -> None:
    """What would otherwise fail after some minutes."""
    if args.ray:
        from rlctl.agents.training.cluster.connection import LOCAL, require_ray

        require_ray()
        if args.workers and args.ray != LOCAL:
            raise ConfigError(f"--workers is for --ray {LOCAL}; another cluster does as many pieces as it has CPUs")
    check_outputs(args)


def seed(text: str) -> int:
    """One that hosts can be drawn from, for argparse."""
    value = int(text)
    if not 0 <= value < 2**62:
        raise argparse.ArgumentTypeError(f"{text} is no seed; give 0 or more")
    return value
