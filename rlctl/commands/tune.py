"""`rlctl tune`: many training runs on Ray, most of them stopped early; the best one with its bundle and its history."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands.arguments import add_ray, command_line, named, positive, positive_int
from rlctl.commands.outputs import add_json, check_outputs, write_json
from rlctl.envs.errors import CheckFailed, ConfigError, require_installed
from rlctl.work.progress import say

if TYPE_CHECKING:
    from rlctl.agents.training.cluster.nodes import Cluster
    from rlctl.agents.training.search.job import Job
    from rlctl.training.search_history import SearchOutcome
    from rlctl.training.search_plan import SearchPlan

EXAMPLES = """examples:
  rlctl tune --algo ppo --trials 24 --max-seconds 600
  rlctl tune --algo dqn --space mine.yaml --scheduler pbt --trials 8 --total-timesteps 2000000 --ray auto
  rlctl tune --resume --out runs/tune-ppo/1
  rlctl tune --algo ppo --dry-run

Trials are drawn from configs/tuning/ALGO.yaml before anything runs: hyperparameters, and margins of the shield, which
may only be tightened. The first one is the recipe and the shield as they ship. Budgets are each trial's. While trials
run they are compared by QoS first and BE throughput second; asha stops the worse two thirds at a ninth and at a third
of the budget, pbt replaces the worst quarter by changed copies of the best three times. The winner is chosen by the
same order on seeds that no trial has seen, and exported to DIR/winner.

A search that was ended, by whatever, goes on with --resume: finished trials are kept, the others go on from their last
evaluation. Each trial takes a CPU and a GiB of memory, dqn more by its replay buffer. On a cluster every node must see
DIR.
"""

ALGORITHMS = ("ppo", "dqn", "maskable-ppo", "qrdqn")
SCHEDULERS = ("asha", "pbt", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--algo", choices=ALGORITHMS, help="the learner")
    parser.add_argument("--space", metavar="FILE", help="what is searched (default: configs/tuning/ALGO.yaml)")
    parser.add_argument("--trials", type=positive_int, metavar="N", help="how many (default: 16)")
    parser.add_argument("--scheduler", choices=SCHEDULERS, help="what ends trials early (default: asha)")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--total-timesteps", type=positive_int, metavar="N", help="of a trial (default: the recipe's)")
    budget.add_argument("--max-seconds", type=positive, metavar="S", help="a trial ends after so long")
    parser.add_argument("--seed", type=int, metavar="N", help="of the draw and of the first trial (default: 0)")
    parser.add_argument("--config", metavar="FILE", help="hyperparameters around which (default: as `rlctl train`)")
    parser.add_argument("--hosts", metavar="FILE", help="hosts to learn on (default: as `rlctl train`)")
    parser.add_argument(
        "--scenario", metavar="A,B,...|all", help="compare trials on these (default: all, as rlctl train)"
    )
    add_ray(parser, "local starts one here (default), auto is this machine's, or HOST:PORT", default="local")
    parser.add_argument(
        "--jobs", type=positive_int, metavar="N", help="local: trials at a time (default: each CPU one)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the search (default: runs/tune-ALGO/NUMBER)")
    parser.add_argument("--resume", action="store_true", help="go on with the search in --out")
    parser.add_argument("--retry-failed", action="store_true", help="resume: failed trials go on, too")
    parser.add_argument("--dry-run", action="store_true", help="print the trials and start nothing")
    add_json(parser, "history as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that no trial came to a policy. Tables go to stdout, all else to stderr."""
    from rlctl.agents.training.cluster.connection import LOCAL, connected, require_ray
    from rlctl.training.plan import new_folder, require_libraries
    from rlctl.training.search_plan import begin, check_new

    _check(args, LOCAL)
    plan = _plan(args)
    check_outputs(args)
    if args.dry_run:
        write_json(args.json, plan.as_file())
        if args.json != "-":
            _print_trials(plan.job)
        return 0
    require_ray()
    require_installed("Ray Tune", "distributed", "pyarrow", "pandas")
    require_libraries(export=True)
    if args.out and not args.resume:
        check_new(args.out)
    with connected(args.ray, cpus=args.jobs) as cluster:
        out: Path = args.out or new_folder(f"tune-{args.algo}")  # only now: where no cluster answers there is no search
        command = command_line("tune", {"resume": True, "out": out, "ray": None if args.ray == LOCAL else args.ray})
        plan = replace(plan, job=replace(plan.job, out=out, command=command))
        say(f"folder: {out}" + (" (goes on)" if args.resume else ""))
        if not args.resume:
            begin(plan)
        try:
            outcome = _searched(args, plan, cluster)
        except (KeyboardInterrupt, SystemExit):
            say(f"go on with: {command}")
            raise
    _show(args, outcome, out)
    return 0


def _check(args: argparse.Namespace, local: str) -> None:
    if args.resume and args.out is None:
        raise ConfigError("--resume needs the folder of the search: --out DIR")
    if args.retry_failed and not args.resume:
        raise ConfigError("--retry-failed goes with --resume")
    if args.jobs and args.ray != local:
        raise ConfigError(f"--jobs is for --ray {local}; another cluster does as many trials at a time as it has CPUs")
    if not (args.algo or args.resume):
        raise ConfigError(f"--algo is needed: {', '.join(ALGORITHMS)}; or --resume with --out")


def _plan(args: argparse.Namespace) -> SearchPlan:
    """The search that goes on, or a new one, which has no folder yet."""
    from pydantic import ValidationError

    from rlctl.training.search_plan import SearchOptions, new_search, resumed_search

    asked = {name: getattr(args, name, None) for name in SearchOptions.model_fields}
    asked |= {
        "algorithm": args.algo,
        "scenarios": None if args.scenario in (None, "all") else named("--scenario", args.scenario),
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if args.resume:
        return resumed_search(args.out, given)
    try:
        return new_search(SearchOptions(**given), args.out or Path())
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--{first['loc'][0]} {first['input']}: {first['msg'].lower()}") from error


def _print_trials(job: Job) -> None:
    from rlctl.report.table import render

    keys = list(job.space.base)
    rows = [("trial", "seed", *keys)]
    rows += [(one.name, str(one.seed), *(str(one.values[key]) for key in keys)) for one in job.candidates]
    print(render(rows))


def _searched(args: argparse.Namespace, plan: SearchPlan, cluster: Cluster) -> SearchOutcome:
    """Search, choose, export, write."""
    from rlctl.agents.training.search.schedulers import REPORTS, reports
    from rlctl.agents.training.search.trial import lineage
    from rlctl.agents.training.search.tuner import WINNER, export_winner, judge, search
    from rlctl.training.search_choice import lead, ranked
    from rlctl.training.search_history import HISTORY, SearchOutcome, write
    from rlctl.work.progress import progress

    job = plan.job
    say(
        f"Ray at {args.ray}: nodes: {len(cluster.nodes)}, CPUs: {cluster.cpus}; each of {len(job.candidates)} trials "
        f"takes a CPU and {job.memory_bytes >> 20} MiB"
    )
    with progress(len(job.candidates), "trials") as watch:
        trials = search(job, cluster, watch, retry_failed=args.retry_failed)
    judged = {one.candidate.name: one for one in trials if one.folder and not one.error}
    if not judged:
        raise CheckFailed(f"no trial came to its end; {trials[0].candidate.name}: {trials[0].error}")
    say(f"choosing among {len(judged)} on {len(job.choice_seeds)} seeds that none has seen")
    plain = job.space.base
    frozen, *scores = judge(job, [(None, plain), *((one.folder, one.values) for one in judged.values())], cluster)
    ticks = {course.name: course.ticks for course in job.courses}
    standings = ranked(dict(zip(judged, scores, strict=True)), frozen, ticks)
    winner, as_shipped = judged[standings[0].name], None
    if job.space.margins(winner.values) != job.space.margins(plain):
        (score,) = judge(job, [(winner.folder, plain)], cluster)
        (as_shipped,) = ranked({winner.candidate.name: score}, frozen, ticks)
    outcome = SearchOutcome(
        plan=plan,
        trials=trials,
        standings=standings,
        lead=lead(standings[0], standings[1]) if len(standings) > 1 else None,
        as_shipped=as_shipped,
        seeds=job.choice_seeds,
        reports=tuple(reports(job.out / REPORTS)),
        lineage={name: lineage(one.folder) for name, one in judged.items() if one.folder},
        ray=args.ray,
    )
    export_winner(job, winner)
    for remark in write(outcome, job.out):
        say(remark)
    shutil.copyfile(job.out / HISTORY, job.out / WINNER / HISTORY)
    return outcome


def _show(args: argparse.Namespace, outcome: SearchOutcome, out: Path) -> None:
    from rlctl.training.search_history import document, tables, verdict

    write_json(args.json, document(outcome))
    if args.json == "-":
        return
    print(tables(outcome))
    print("\nshort: QoS points that a trial may lack, by the upper ends of its intervals, over all scenarios\n")
    print("\n".join(verdict(outcome)))
    print(f"{out / 'winner'}: bundle {out / 'winner' / 'bundle'}, history {out / 'winner' / 'history.json'}")
