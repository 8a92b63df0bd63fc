"""`rlctl bench`: managers side by side, in the simulator or on the live host."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from rlctl.agents import catalogue
from rlctl.agents.served.learned import plain_name
from rlctl.agents.training.cluster.connection import check_ray, check_reachable
from rlctl.bench.participants import left_out, no_idle_class, require_library
from rlctl.bench.scenarios import changed, load_scenario, require_distinct, shipped_scenarios
from rlctl.bench.sim_scenario import SUITE, SimScenario
from rlctl.commands import bench_runs, bench_verify
from rlctl.commands.arguments import positive
from rlctl.commands.options import (
    add_ray,
    distinct_policies,
    not_negative,
    positive_int,
    refuse_given,
    require_names,
    split_names,
)
from rlctl.commands.outputs import add_json, check_outputs
from rlctl.envs.errors import ConfigError
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.workload import Weight
from rlctl.log.progress import say
from rlctl.safety.profile import DEFAULT

EXAMPLES = """examples:
  rlctl bench --managers frozen,prm-hybrid,prm-hybrid-tuned --seeds 10
  rlctl bench --scenario all --managers all --json result.json --report out/
  rlctl bench --scenario all --managers all --tuned --json tuned.json
  rlctl bench verify result.json
  rlctl bench compare before.json after.json
  rlctl bench table live.json
  rlctl bench --managers ./toy.py:Toy,feedforward,ppo --against feedforward
  rlctl bench --scenario all --ray auto --json result.json
  rlctl bench --managers ppo,ppo-bare,out/my-policy,prm-hybrid-tuned
  rlctl bench --managers ./toy.py:Toy,prm-hybrid-tuned,feedforward --report out/
  rlctl bench --plant host --scenario live-nginx --managers none,weights,frozen,greedy-shield
  rlctl bench --plant host --repeats 6 --ray auto --json out.json
  rlctl bench --plant host --scenario live-nginx --be-weight minimum --managers frozen,weights,ppo
  rlctl bench --plant host --scenario live-network --managers none,frozen,htb,htb-wrong,prm-hybrid-tuned,ppo
  rlctl bench --plant host --scenario live-disk --managers weights,frozen,io-max,io-max-wrong,prm-hybrid-tuned,ppo
  rlctl bench --plant host --scenario live-disk-direct --managers ppo,io-max@0.5,io-max@0.75,io-max,io-max@1.25
  rlctl bench --plant host --scenario live-memcached --managers all --repeats 3 --json out.json --report out/
"""

ALL = (
    f"all: {', '.join(SUITE)} in the simulator, every live one with --plant host; "
    "default: thesis in the simulator, live-nginx on the host"
)

MANAGERS = (
    "names from `rlctl managers`, folders of bundles with a slash in them, classes of your own as FILE.py:CLASS, or "
    "all, the default; X-bare is the learned policy X without shield, mask and experience, "
    "to X-bold and X-careful a violation costs less and more"
)

RAY = (
    "on a Ray cluster: local starts one here, auto is this machine's, or HOST:PORT; sim: the result is the same; "
    "host: repeats are shared out to all its live testbeds"
)


NOT_OF_ACTIONS = (
    *("plant", "scenario", "managers", "seeds", "repeats", "adapt", "duration", "be_weight", "shield", "tuned"),
    *("source", "unopened", "time_scale", "json", "report", "dry_run", "against"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--plant", choices=("sim", "host"), help="default: the scenario's, without one sim")
    parser.add_argument("--scenario", metavar="NAME|FILE,...|all", help=ALL)
    parser.add_argument("--managers", metavar="A,B,...", help=MANAGERS)
    parser.add_argument("--seeds", type=positive_int, metavar="N", help="sim: evaluation seeds (default: 30)")
    unopened = "sim: on seeds that are kept for releases"
    parser.add_argument("--unopened", action="store_true", default=None, help=unopened)
    parser.add_argument("--jobs", type=positive_int, metavar="N", help="sim: processes (default: one for each CPU)")
    add_ray(parser, RAY)
    rounds = "host: rounds, in each of which everybody runs once, in a fresh order (default: 8)"
    parser.add_argument("--repeats", type=positive_int, metavar="N", help=rounds)
    before = (
        "let who is shielded or learns of the host watch it for so long before it counts (default: 300 on the host, "
        "0 in the simulator)"
    )
    parser.add_argument("--adapt", type=not_negative, metavar="SECONDS", help=before)
    parser.add_argument("--duration", type=positive, metavar="SECONDS", help="of one run (default: the scenario's)")
    parser.add_argument(
        "--be-weight",
        choices=[str(weight) for weight in Weight],
        help="BE's CPU weight under all managers but those that are about it (default: the scenario's)",
    )
    source = (
        "host: who tells policies of latency and load at the LC's TCP port: the load generator, or the kernel, "
        "with nothing told but the target (default: the generator, at a unix socket)"
    )
    parser.add_argument("--source", choices=("generator", "tcp"), help=source)
    parser.add_argument("--shield", metavar="NAME|FILE[+GUARD]", help=f"default: {DEFAULT}")
    parser.add_argument(
        "--tuned",
        nargs="?",
        const="tuned",
        metavar="FILE",
        help="sim: constants tuned on training seeds, those that ship or FILE's (default: published ones)",
    )
    parser.add_argument("--time-scale", type=positive, metavar="X", help="divide published periods by X")
    parser.add_argument("--against", metavar="MANAGER", help="sim: show everybody's differences from it, seed by seed")
    add_json(parser)
    parser.add_argument("--report", type=Path, metavar="DIR", help="write plots, table and logs here")
    parser.add_argument("--dry-run", action="store_true", default=None, help="print the plan and touch nothing")
    actions = parser.add_subparsers(dest="action", metavar="[verify FILE | compare OLD NEW | table FILE]")
    verify = actions.add_parser("verify", help="re-run what a result file of the simulator claims, and compare")
    both = actions.add_parser("compare", help="what differs between two result files of the simulator, seed by seed")
    both.add_argument("old", type=Path, metavar="OLD", help="what `bench --plant sim --json FILE` wrote")
    both.add_argument("new", type=Path, metavar="NEW", help="likewise, of the same scenarios")
    table = actions.add_parser("table", help="a result of live hosts: what managers differ by, round by round")
    table.add_argument("file", type=Path, metavar="FILE", help="what `bench --plant host --json FILE` wrote")
    from_whom = "show everybody's differences from it (default: weights, table and the best heuristic)"
    table.add_argument("--against", metavar="MANAGER", default=argparse.SUPPRESS, help=from_whom)
    verify.add_argument("file", type=Path, metavar="FILE", help="what `bench --plant sim --json FILE` wrote")
    jobs = "processes (default: one for each CPU)"
    verify.add_argument("--jobs", type=positive_int, metavar="N", default=argparse.SUPPRESS, help=jobs)
    # Suppressed: the default of a subcommand would overwrite what the command was given.
    add_ray(verify, RAY, default=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run the command: everything that is asked for is checked before anything is started.

    Tables go to stdout, all else to stderr; what was measured before a run on the live host fails is written.
    """
    check_ray(args.ray, "--jobs", args.jobs)
    if args.action:
        taken = {"against"} if args.action == "table" else set()
        others = [name for name in NOT_OF_ACTIONS if name not in taken]
        refuse_given(args, others, f"is not {args.action}'s, which takes what its files say")
        actions = {"verify": bench_verify.run, "compare": bench_verify.compare, "table": bench_runs.print_rounds}
        return int(actions[args.action](args))
    args.shield = DEFAULT if args.shield is None else args.shield
    scenarios = _scenarios(args)
    live = any(isinstance(scenario, LiveScenario) for scenario in scenarios.values())
    _check_options(args, live=live)
    asked = "all" if args.managers is None else args.managers
    names, missing = _managers(asked, live=live, answers=_answers(scenarios.values()))
    if args.against and args.against not in names:
        raise ConfigError(f"--against {args.against}: is not among the managers; add it to --managers")
    check_reachable(args.ray, names)
    kinds = ((bench_runs.sim_plan, bench_runs.run_simulated), (bench_runs.live_plan, bench_runs.run_live))
    plan_of, run_plans = cast("tuple[Callable[..., Any], Callable[..., int]]", kinds[live])
    plans = [plan_of(args, scenario, names, source) for source, scenario in scenarios.items()]
    check_outputs(args)
    for reason in dict.fromkeys(missing.values()):
        say(f"left out {', '.join(name for name in missing if missing[name] == reason)}: {reason}")
    return run_plans(args, plans)


def _scenarios(args: argparse.Namespace) -> dict[str, LiveScenario | SimScenario]:
    """The scenarios by the names or files given, all of one plant, with the duration and time scale asked for."""
    if args.scenario == "all":
        names: Sequence[str] = list(_that_fit(args.ray)) if args.plant == "host" else SUITE
    else:
        default = "live-nginx" if args.plant == "host" else "thesis"
        names = require_names("--scenario", default if args.scenario is None else args.scenario)
    asked = {name: load_scenario(name) for name in names}
    plant = args.plant or asked[names[0]].plant
    for name, scenario in asked.items():
        if scenario.plant != plant:
            raise ConfigError(
                f"scenario {name} is for --plant {scenario.plant}, not {plant}; `rlctl scenarios` lists the others"
            )
    require_distinct([one.name for one in asked.values()])
    if args.source and plant == "sim":
        raise ConfigError("--source is the live host's; leave it out")
    given = {"duration_seconds": args.duration, "time_scale": args.time_scale, "source": args.source}
    return {name: changed(scenario, args.be_weight, **given) for name, scenario in asked.items()}


def _that_fit(cluster: str | None) -> Iterator[str]:
    """The live scenarios that ship and whose CPUs are here; all of them for the hosts of a cluster."""
    for name, scenario in shipped_scenarios().items():
        if isinstance(scenario, LiveScenario):
            try:
                if cluster is None:
                    scenario.require_online()
            except ConfigError as error:
                say(f"left out {name}: {error}")
            else:
                yield name


def _check_options(args: argparse.Namespace, *, live: bool) -> None:
    """An option of the other plant is a misunderstanding, and not to be passed over."""
    if live and (args.seeds or args.jobs or args.unopened):
        raise ConfigError("--seeds, --unopened and --jobs are the simulator's; on the host give --repeats")
    if live and args.tuned:
        raise ConfigError("--tuned constants were found in the simulator, for the simulator; leave it out on the host")
    if args.be_weight == Weight.IDLE and (why := no_idle_class(live=live)):
        raise ConfigError(f"--be-weight idle: {why}")
    if live and args.against:
        raise ConfigError("--against compares seed by seed, which a live host does not have; leave it out")
    if not live and args.repeats:
        raise ConfigError("--repeats is the live host's; in the simulator give --seeds")


def _answers(scenarios: Collection[LiveScenario | SimScenario]) -> tuple[str, ...]:
    """Answers of the kernel that every one of the scenarios has a use for."""
    return tuple(
        name
        for name, answer in catalogue.ANSWERS.items()
        if all(isinstance(one, LiveScenario) and getattr(one, answer.resource) for one in scenarios)
    )


def _managers(names: str, *, live: bool, answers: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names asked for, and of `all` those that are left out as they cannot run here, with the reason."""
    given, missing = split_names(names), {}
    if "all" in given:
        learned = [name for name in catalogue.LEARNED if plain_name(name) == name]
        every = [*catalogue.NAMES, *learned, *([] if live else sorted(catalogue.BOUNDS)), *answers]
        missing = left_out(every, live=live)
        given = (
            *(name for name in every if name not in missing),
            *(name for name in given if name not in ("all", *every)),
        )
    asked = distinct_policies("--managers", given)
    require_library(asked)
    if live and (bounds := catalogue.BOUNDS.keys() & set(asked)):
        raise ConfigError(f"{', '.join(sorted(bounds))}: in the simulator only; leave out --plant host")
    if live and "cpu-idle" in asked and (why := no_idle_class(live=True)):
        raise ConfigError(f"cpu-idle: {why}; leave it out")
    for resource, example in (("link", "live-network"), ("disk", "live-disk")):
        told = [name for name in asked if (answer := catalogue.answer_of(name)) and answer.resource == resource]
        if useless := [name for name in told if name.partition("@")[0] not in answers]:
            raise ConfigError(f"{', '.join(useless)}: only where there is a {resource}, as in --scenario {example}")
    return asked, missing
