"""`rlctl train`: a policy from simulated hosts, from a dataset, or fine-tuned on the live testbed; with its bundle."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands.arguments import number, positive
from rlctl.commands.options import add_ray, command_line, positive_int, refuse_given
from rlctl.commands.outputs import add_json, check_outputs, write_json
from rlctl.envs.errors import ConfigError
from rlctl.log.progress import say
from rlctl.safety.profile import DEFAULT

if TYPE_CHECKING:
    from rlctl.agents.training.cluster.nodes import Cluster
    from rlctl.agents.training.rollouts.cluster_env import Rollouts
    from rlctl.agents.training.training_run import TrainingResult
    from rlctl.learn.plan import TrainingOptions, TrainingPlan

EXAMPLES = """examples:
  rlctl train --algo ppo --max-seconds 600
  rlctl train --algo dqn --total-timesteps 2000
  rlctl train --algo ppo --config mine.yaml --hosts hosts.yaml --seeds 5
  rlctl train --algo ppo --init runs/ppo/1/best_model.zip --profile nginx.yaml --max-seconds 300
  rlctl train --resume runs/ppo/1
  rlctl train --algo ppo --dry-run
  rlctl train --plant host --scenario live-nginx --init runs/dqn/1/best_model.zip --total-timesteps 600
  rlctl train --algo ppo --ray auto --n-envs 256
  rlctl train --algo dqn --ray 10.0.0.1:6379 --live live-nginx --init runs/dqn/1/best_model.zip
  rlctl train --offline nginx-v0 --algo cql

It learns on randomised hosts (configs/training/hosts.yaml) and is compared, while it learns, on the suite's scenarios
and those of capped links and disks, at seeds that no run learns on and no benchmark reports. Ctrl-C writes a
checkpoint, evaluates, exports and ends; a second one ends at once. The folder of a run holds everything that
reproduces it.

With --plant host a trained policy goes on learning on the live testbed, behind the shield: it seldom tries a move next
to its best one, and only with much slack; what does no better than the policy as it was is not kept.

With --ray the hosts are elsewhere: every node of the cluster that offers the resource `testbed` acts for the learner,
and with --live those that also offer `live` run that scenario's testbed, behind the shield and within the same bounds.
All act at once, and the learner waits for the slowest. Nodes may join late or die; what was lost with them is counted.

With --offline it learns from a dataset alone (`rlctl dataset`), and touches no host: bc clones the dataset's best
policy, cql learns from all of them. The round that is kept is the one with the best value on held-out episodes, or with
--scenario the best one in the simulator. --total-timesteps are updates then.
"""

ALGORITHMS = ("ppo", "dqn", "maskable-ppo", "qrdqn", "ppo-lagrangian")
OFFLINE = ("bc", "cql")
LIVE_ONLY = ("explore", "explore_slack")
NEW_RUN_ONLY = (
    *("algo", "config", "hosts", "profile", "init", "seed", "seeds", "n_envs", "shield", "scenario", "out"),
    *("live", "explore", "explore_slack"),
)
"""Arguments that a run that goes on has already."""

CHANGED_BY_RESUMING = ("total_timesteps", "max_seconds", "threads")
"""Arguments that it may be given anew, each time: its folder keeps what it was begun with."""

ENDING = "ending: checkpoint, evaluation, export; once more to end at once"


WHOLE = number(int, lambda value: value >= 0, "is not a whole number of 0 or more")
FINITE = number(float, math.isfinite, "is not a share, such as 0.1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--algo", type=_algorithm, choices=(*ALGORITHMS, *OFFLINE), help="the learner; bc and cql go with --offline"
    )
    parser.add_argument("--plant", choices=("sim", "host"), default="sim", help="default: sim")
    parser.add_argument("--offline", metavar="ID|DIR", help="learn from this dataset, without any host")
    parser.add_argument("--config", metavar="FILE", help="hyperparameters (default: configs/training/ALGO.yaml)")
    parser.add_argument("--hosts", metavar="FILE", help="hosts to learn on (default: configs/training/hosts.yaml)")
    parser.add_argument(
        "--profile",
        action="append",
        metavar="FILE",
        help="a host of your own; all such are half of the hosts (repeatable)",
    )
    parser.add_argument("--init", metavar="MODEL.zip", help="begin with these weights")
    parser.add_argument(
        "--seed",
        type=WHOLE,
        metavar="N",
        help="the run's (default: 0)",
    )
    parser.add_argument("--seeds", type=positive_int, metavar="N", help="so many runs, each with the next seed")
    parser.add_argument("--total-timesteps", type=positive_int, metavar="N", help="default: the configuration's")
    parser.add_argument("--max-seconds", type=positive, metavar="S", help="end after so long, all sessions together")
    parser.add_argument("--n-envs", type=positive_int, metavar="N", help="simulated hosts (default: configuration's)")
    parser.add_argument(
        "--scenario",
        metavar="A,B,...|all",
        help="compare policies on these while they learn (default: all); host: its testbed",
    )
    parser.add_argument("--shield", metavar="NAME|FILE", help=f"and under this shield (default: {DEFAULT})")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="of torch (default: 1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the run (default: runs/ALGO/NUMBER)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in this folder")
    parser.add_argument(
        "--explore", type=FINITE, metavar="SHARE", help="live: ticks that may try a neighbouring move (default: 0.1)"
    )
    parser.add_argument(
        "--explore-slack", type=FINITE, metavar="SHARE", help="live: slack from which on they may (default: 0.5)"
    )
    add_ray(parser, "learn from a Ray cluster's testbeds: local starts one here, auto is this machine's, or HOST:PORT")
    parser.add_argument(
        "--ray-wait",
        type=positive,
        metavar="S",
        help="end when nothing comes from any testbed for so long (default: 300)",
    )
    parser.add_argument("--live", metavar="SCENARIO", help="testbed of nodes that offer `live`, such as live-nginx")
    parser.add_argument("--no-export", action="store_true", help="write no bundle")
    parser.add_argument("--dry-run", action="store_true", help="print the effective configuration and its sources")
    add_json(parser, "scores as JSON")


def _algorithm(name: str) -> str:
    if name == "recurrent-ppo":
        from rlctl.agents.training.recipe import NO_RECURRENT

        raise argparse.ArgumentTypeError(NO_RECURRENT)
    return name


def run(args: argparse.Namespace) -> int:
    """Run the command; 0, or 128 + n when signal n ended it early. The table goes to stdout, all else to stderr."""
    if args.plant == "host":
        from rlctl.commands import train_live

        return train_live.run(args)
    if args.offline:
        from rlctl.commands import train_offline

        return train_offline.run(args)
    from rlctl.learn.plan import require_libraries

    _check(args)
    plans = _check_plans(args, _plans(args))
    check_outputs(args)
    if args.dry_run:
        (say if args.json == "-" else print)("\n".join(plans[0].lines()))
        return 0
    require_libraries()
    from rlctl.learn.progress import signals_noted

    results: list[TrainingResult] = []
    with contextlib.ExitStack() as leaving:
        leaving.callback(lambda: _show(args, results) if results else None)  # also where a later run cannot be
        caught, cluster = leaving.enter_context(signals_noted(ENDING)), leaving.enter_context(_cluster(args))
        for plan in plans:
            results.append(_train(args, plan, _folder(args, plan.run.seed), caught, cluster))
            if caught:
                break
    return 128 + caught[0] if caught else 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what would otherwise fail only when a cluster is there, or go unnoticed."""
    if args.algo in OFFLINE:
        raise ConfigError(f"--algo {args.algo} learns from a dataset: give --offline ID|DIR, see `rlctl dataset`")
    if not args.ray:
        refuse_given(args, ("ray_wait", "live"), "goes with --ray")
    if not args.live:
        refuse_given(args, LIVE_ONLY, "goes with --plant host or --live; see the recipe's keys")
    elif args.algo == "ppo":
        raise ConfigError("--live allows few moves at a time, which ppo cannot learn from: give --algo maskable-ppo")
    elif not args.init:
        raise ConfigError("--live lets a policy act on a live host: give a trained one, --init MODEL.zip")


def _check_plans(args: argparse.Namespace, plans: list[TrainingPlan]) -> list[TrainingPlan]:
    """The plans; ConfigError where a run, new or gone on with, cannot be where it is to be."""
    from rlctl.agents.training.host_kinds import first_seed
    from rlctl.agents.training.run_folder import check_new

    asked = plans[0].options
    if args.ray and asked.algorithm == "ppo-lagrangian":
        raise ConfigError("ppo-lagrangian learns on hosts simulated in this process: leave out --ray")
    if asked.live and not args.ray:
        raise ConfigError(f"it learns on the testbeds of {asked.live}: give --ray with the cluster that has them")
    for plan in () if args.resume else plans:
        first_seed(plan.run.seed, 1)
        if args.out:
            check_new(_folder(args, plan.run.seed))
    return plans


def _cluster(args: argparse.Namespace) -> contextlib.AbstractContextManager[Cluster | None]:
    """The one that is asked for; one of this machine's own offers a testbed for each CPU."""
    if not args.ray:
        return contextlib.nullcontext()
    from rlctl.agents.training.cluster.connection import LOCAL, connected

    cpus = len(os.sched_getaffinity(0))
    resources = {"testbed": cpus, "live": 1} if args.ray == LOCAL else {}
    return connected(args.ray, resources=resources)


def _plans(args: argparse.Namespace) -> list[TrainingPlan]:
    from rlctl.learn.plan import TrainingOptions, new_plan, resumed_plan

    if args.resume:
        if given := [name for name in NEW_RUN_ONLY if getattr(args, name) is not None]:
            raise ConfigError(f"--resume goes on with what the run has; leave out --{given[0].replace('_', '-')}")
        changes = {name: getattr(args, name) for name in CHANGED_BY_RESUMING}
        return [resumed_plan(args.resume, {key: value for key, value in changes.items() if value is not None})]
    if not args.algo:
        raise ConfigError(f"--algo is needed: {', '.join(ALGORITHMS)}; or --resume with the folder of a run")
    if args.init and not Path(args.init).is_file():
        raise ConfigError("is not a file; --init takes a model that `rlctl train` wrote", args.init)
    options = TrainingOptions.of_arguments(vars(args))
    return [new_plan(options.model_copy(update={"seed": options.seed + number})) for number in range(args.seeds or 1)]


def _folder(args: argparse.Namespace, seed: int) -> Path:
    """The folder of a run with this seed; a default one is made, for the next run to have another."""
    from rlctl.learn.plan import new_folder

    folder: Path = args.resume or args.out or new_folder(args.algo)
    return folder / f"seed-{seed}" if args.out and (args.seeds or 1) > 1 else folder


def _train(
    args: argparse.Namespace, plan: TrainingPlan, folder: Path, caught: list[int], cluster: Cluster | None
) -> TrainingResult:
    from rlctl.agents.training.learn import learn
    from rlctl.learn.progress import training_progress

    say("\n".join(plan.lines()))
    say(f"folder: {folder}" + (" (goes on)" if args.resume else ""))
    command, export = _command(args, plan.options, folder), not args.no_export
    run = replace(plan.run, folder=folder, command=command, resume=bool(args.resume), export=export)
    with training_progress() as show:
        result = learn(run, show, lambda: bool(caught), _rollouts(args, plan, cluster))
    for remark in result.remarks:
        say(remark)
    if result.tally:
        say(result.tally.line())
    say(f"{result.ending}: {result.timesteps:,} timesteps in {result.seconds:.0f} s")
    if caught:
        changed = {name: getattr(args, name) for name in CHANGED_BY_RESUMING} if args.resume else {}
        say(f"go on with: {command_line('train', {'resume': folder, 'ray': args.ray} | changed)}")
    return result


def _rollouts(args: argparse.Namespace, plan: TrainingPlan, cluster: Cluster | None) -> Rollouts | None:
    if cluster is None:
        return None
    from rlctl.agents.training.rollouts.cluster_env import WAIT_SECONDS, Rollouts
    from rlctl.learn.plan import live_testbed

    return Rollouts(cluster, live_testbed(plan.options, plan.run.recipe.lags), args.ray_wait or WAIT_SECONDS, say)


def _command(args: argparse.Namespace, options: TrainingOptions, folder: Path) -> str:
    """The command line that does the same again."""
    kept = options.model_dump(
        exclude={"algorithm", "profiles", "scenarios"} | (set() if options.live else {*LIVE_ONLY})
    )
    more = {"profile": options.profiles, "scenario": ",".join(options.scenarios), "ray": args.ray}
    named = {"algo": options.algorithm, "seed": options.seed, **kept, **more}
    return command_line("train", {**named, "no_export": args.no_export, "out": folder})


def _show(args: argparse.Namespace, results: Sequence[TrainingResult]) -> None:
    from rlctl.learn.progress import result_rows
    from rlctl.report.page import render

    runs = [one.as_json() for one in results]
    write_json(args.json, {"schema": 1, "algorithm": results[0].run.algorithm, "runs": runs})
    if args.json == "-":
        return
    print(render(result_rows(results)))
    for one in results:
        if one.tally:
            print(f"\n{render(one.tally.rows())}")
    print("\nbest model on validation seeds: QoS % of windows / BE % of running alone / override %")
    for one in results:
        print(f"{one.run.folder}: " + (f"bundle {one.bundle}" if one.bundle else "no bundle"))
