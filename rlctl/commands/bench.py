"""`rlctl bench`: managers side by side, in the simulator or on the live host."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlctl.commands import bench_live, bench_sim
from rlctl.commands.arguments import address, positive, positive_int
from rlctl.commands.outputs import check_outputs
from rlctl.envs.errors import ConfigError
from rlctl.scenarios.live import LiveScenario
from rlctl.scenarios.shipped import load_scenario, shipped_scenarios
from rlctl.scenarios.sim import SUITE, SimScenario
from rlctl.work.progress import say

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """examples:
  rlctl bench --managers frozen,prm-hybrid,prm-hybrid-tuned --seeds 10
  rlctl bench --scenario all --managers all --json result.json --report out/
  rlctl bench --scenario all --managers all --tuned --json tuned.json
  rlctl bench verify result.json
  rlctl bench --scenario all --ray auto --json result.json
  rlctl bench --managers ppo,ppo-bare,out/my-policy,prm-hybrid-tuned
  rlctl bench --managers ./toy.py:Toy,prm-hybrid-tuned,feedforward --report out/
  rlctl bench --plant host --scenario live-nginx --managers none,weights,frozen,greedy-shield
  rlctl bench --plant host --repeats 6 --ray auto --json out.json
  rlctl bench --plant host --scenario live-memcached --managers all --repeats 3 --json out.json --report out/
"""

ALL = (
    f"all: {', '.join(SUITE)} in the simulator, every live one with --plant host; "
    "default: thesis in the simulator, live-nginx on the host"
)

MANAGERS = (
    "names from `rlctl managers`, folders of bundles with a slash in them, classes of your own as FILE.py:CLASS, or "
    "all, the default; X-bare is the learned policy X without shield and mask"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--plant", choices=("sim", "host"), help="default: the scenario's, without one sim")
    parser.add_argument("--scenario", metavar="NAME|FILE|all", help=ALL)
    parser.add_argument("--managers", default="all", metavar="A,B,...", help=MANAGERS)
    parser.add_argument("--seeds", type=positive_int, metavar="N", help="sim: evaluation seeds (default: 30)")
    parser.add_argument("--jobs", type=positive_int, metavar="N", help="sim: processes (default: one for each CPU)")
    _add_ray(parser)
    parser.add_argument("--repeats", type=positive_int, metavar="N", help="host: runs of each (default: 3)")
    parser.add_argument("--duration", type=positive, metavar="SECONDS", help="of one run (default: the scenario's)")
    parser.add_argument("--shield", default="responsive", metavar="NAME|FILE", help="default: responsive")
    parser.add_argument(
        "--tuned",
        nargs="?",
        const="tuned",
        metavar="FILE",
        help="sim: constants tuned on training seeds, those that ship or FILE's (default: published ones)",
    )
    parser.add_argument("--time-scale", type=positive, metavar="X", help="divide published periods by X")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="the result as JSON; without FILE to stdout"
    )
    parser.add_argument("--report", type=Path, metavar="DIR", help="write plots, table and logs here")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and touch nothing")
    _add_verify(parser)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="[verify FILE]")
    verify = actions.add_parser("verify", help="re-run what a result file of the simulator claims, and compare")
    verify.add_argument("file", type=Path, metavar="FILE", help="what `bench --plant sim --json FILE` wrote")
    verify.add_argument(
        "--jobs",
        type=positive_int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="processes (default: one for each CPU)",
    )  # suppressed: the default of a subcommand would overwrite what the command was given
    _add_ray(verify, default=argparse.SUPPRESS)


def _add_ray(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument(
        "--ray",
        type=address,
        metavar="ADDRESS",
        default=default,
        help="on a Ray cluster: local starts one here, auto is this machine's, or HOST:PORT; sim: the result is the "
        "same; host: repeats are shared out to all its live testbeds",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; tables go to stdout, all else to stderr.

    Raises:
        ConfigError: Something that is asked for cannot be, told before anything is started.
        HostError: The testbed could not be run, or not to the end; what was measured until then has been written.
    """
    _check_ray(args)
    if args.action == "verify":
        from rlctl.commands import bench_verify

        return bench_verify.run(args)
    asked = _asked(args)
    live = [one for one in asked.values() if isinstance(one, LiveScenario)]
    _check_options(args, live=bool(live))
    names, notes = _managers(args.managers, live=bool(live))
    _check_reachable(args, names)
    if live:
        live_plans = [bench_live.plan_of(args, one, names) for one in live]
        _announce(args, notes)
        return bench_live.run_plans(args, live_plans)
    simulated = [(name, one) for name, one in asked.items() if isinstance(one, SimScenario)]
    plans = [bench_sim.plan_of(args, one, names, name) for name, one in simulated]
    _announce(args, notes)
    return bench_sim.run_plans(args, plans)


def _announce(args: argparse.Namespace, notes: Sequence[str]) -> None:
    check_outputs(args)
    for note in notes:
        say(note)


def _asked(args: argparse.Namespace) -> dict[str, LiveScenario | SimScenario]:
    """The scenarios by what they were asked for, all of one plant."""
    if args.scenario == "all":
        live = [name for name, one in shipped_scenarios().items() if isinstance(one, LiveScenario)]
        names: Sequence[str] = live if args.plant == "host" else SUITE
    else:
        names = (args.scenario or ("live-nginx" if args.plant == "host" else "thesis"),)
    found = {name: _adjusted(load_scenario(name), args.duration, args.time_scale) for name in names}
    for name, one in found.items():
        if args.plant not in (None, one.plant):
            raise ConfigError(f"scenario {name} is for --plant {one.plant}; `rlctl scenarios` lists the others")
        if one.duration_seconds < 2.0 * one.tick_seconds:
            raise ConfigError(f"a run of {one.duration_seconds:g} s has less than two ticks; make it longer")
    return found


def _check_options(args: argparse.Namespace, *, live: bool) -> None:
    """An option of the other plant is a misunderstanding, and not to be passed over."""
    if live and (args.seeds or args.jobs):
        raise ConfigError("--seeds and --jobs are the simulator's; on the host give --repeats")
    if live and args.tuned:
        raise ConfigError("--tuned constants were found in the simulator, for the simulator; leave it out on the host")
    if not live and args.repeats:
        raise ConfigError("--repeats is the live host's; in the simulator give --seeds")


def _check_ray(args: argparse.Namespace) -> None:
    """What would otherwise fail only when a cluster is looked for."""
    if not args.ray:
        return
    from rlctl.agents.training.cluster.connection import LOCAL, require_ray

    if args.jobs and args.ray != LOCAL:
        raise ConfigError(f"--jobs is for --ray {LOCAL}; another cluster does as many tasks at a time as it has CPUs")
    require_ray()


def _check_reachable(args: argparse.Namespace, names: Sequence[str]) -> None:
    from rlctl.agents.training.cluster.connection import check_reachable

    check_reachable(args.ray, names)


def _managers(listed: str, *, live: bool) -> tuple[tuple[str, ...], list[str]]:
    """The names asked for, and for `all` a line on those that are left out because they cannot run here."""
    from rlctl.agents import catalogue
    from rlctl.bench.lineup import left_out, require_library
    from rlctl.bench.suite import BOUNDS

    asked = _everyone(live=live) if listed == "all" else [name.strip() for name in listed.split(",") if name.strip()]
    missing = left_out(asked) if listed == "all" else {}
    names = tuple(name for name in asked if name not in missing)
    if not names:
        raise ConfigError("--managers names none; see `rlctl managers`")
    if len({catalogue.label(name) for name in names}) < len(names):
        raise ConfigError("--managers names one twice; a bundle goes by the name of its folder, code by its class")
    require_library(names)
    if live and (bounds := BOUNDS & set(names)):
        raise ConfigError(f"{', '.join(sorted(bounds))}: in the simulator only; leave out --plant host")
    return names, _notes(missing)


def _everyone(*, live: bool) -> list[str]:
    """All managers; bounds exist in the simulator only."""
    from rlctl.agents import catalogue
    from rlctl.agents.served.learned import BARE
    from rlctl.bench.suite import BOUNDS

    learned = [name for name in catalogue.LEARNED if not name.endswith(BARE)]
    return [*catalogue.NAMES, *learned, *([] if live else sorted(BOUNDS))]


def _notes(missing: Mapping[str, str]) -> list[str]:
    """One line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    return [f"left out {' and '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _adjusted(
    scenario: LiveScenario | SimScenario, duration: float | None, time_scale: float | None
) -> LiveScenario | SimScenario:
    changes = {"duration_seconds": duration, "time_scale": time_scale}
    return scenario.model_copy(update={key: value for key, value in changes.items() if value is not None})
