"""`rlctl tune`: many training runs on Ray, most of them stopped early; the best one with its bundle and its history."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands.arguments import positive
from rlctl.commands.options import add_ray, command_line, positive_int, refuse_given
from rlctl.commands.outputs import add_json, check_outputs, write_json
from rlctl.envs.errors import CheckFailed, ConfigError, require_installed
from rlctl.envs.whole_file import write_whole
from rlctl.log.progress import say

if TYPE_CHECKING:
    from rlctl.agents.training.cluster.nodes import Cluster
    from rlctl.agents.training.search.job import Job
    from rlctl.learn.search import SearchOptions, SearchOutcome

EXAMPLES = """examples:
  rlctl tune --algo ppo --trials 24 --max-seconds 600
  rlctl tune --algo dqn --space mine.yaml --trials 8 --total-timesteps 2000000 --ray auto
  rlctl tune --resume --out runs/tune-ppo/1
  rlctl tune --algo ppo --dry-run

What is searched stands in configs/tuning/ALGO.yaml. The first trial is the recipe as it ships; Optuna proposes the
others from the scores before them. Budgets are each trial's. While trials run they are compared by QoS first and BE
throughput second; asha stops the worse two thirds at a ninth and at a third of the budget. The winner is chosen by the
same order on seeds that no trial has seen, and exported to DIR/winner.

A search that was interrupted goes on with --resume: finished trials are kept, the others go on from their last
evaluation. Each trial takes a CPU and a GiB of memory, dqn more by its replay buffer. On a cluster every node must see
DIR.
"""

ALGORITHMS = ("ppo", "dqn", "maskable-ppo", "qrdqn")
FIXED = (
    "algo",
    "space",
    "trials",
    "scheduler",
    "total_timesteps",
    "max_seconds",
    "seed",
    "config",
    "hosts",
    "scenario",
)
"""Arguments that stand in the folder of a search that goes on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--algo", choices=ALGORITHMS, help="the learner")
    parser.add_argument("--space", metavar="FILE", help="what is searched (default: configs/tuning/ALGO.yaml)")
    parser.add_argument("--trials", type=positive_int, metavar="N", help="how many (default: 16)")
    parser.add_argument("--scheduler", choices=("asha", "none"), help="what ends trials early (default: asha)")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--total-timesteps", type=positive_int, metavar="N", help="of a trial (default: the recipe's)")
    budget.add_argument("--max-seconds", type=positive, metavar="S", help="a trial ends after so long")
    parser.add_argument("--seed", type=int, metavar="N", help="of the searcher and of the first trial (default: 0)")
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
    parser.add_argument("--dry-run", action="store_true", help="print what is searched and start nothing")
    add_json(parser, "history as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that no trial came to a policy. Tables go to stdout, all else to stderr."""
    from rlctl.agents.training.cluster.connection import LOCAL, connected, require_ray
    from rlctl.learn.plan import new_folder, require_libraries
    from rlctl.learn.search import begin, check_new

    _check(args, LOCAL)
    options, job = _search_of(args)
    check_outputs(args)
    if args.dry_run:
        write_json(args.json, options.model_dump(mode="json") | {"digest": job.space.digest})
        if args.json != "-":
            _print_space(job)
        return 0
    require_ray()
    require_installed("Ray Tune", "distributed", "pyarrow", "pandas", "optuna")
    require_libraries()
    if args.out and not args.resume:
        check_new(args.out)
    with connected(args.ray, cpus=args.jobs) as cluster:
        # The folder is made only now: where no cluster answers there is no search.
        out: Path = args.out or new_folder(f"tune-{args.algo}")
        command = command_line("tune", {"resume": True, "out": out, "ray": None if args.ray == LOCAL else args.ray})
        job = replace(job, run=replace(job.run, folder=out, command=command))
        say(f"folder: {out}" + (" (goes on)" if args.resume else ""))
        if not args.resume:
            begin(options, job)
        try:
            outcome = _search(args, options, job, cluster)
        except (KeyboardInterrupt, SystemExit):
            say(f"go on with: {command}")
            raise
    _show(args, outcome, out)
    return 0


def _check(args: argparse.Namespace, local: str) -> None:
    if args.resume and args.out is None:
        raise ConfigError("--resume needs the folder of the search: --out DIR")
    if args.resume:
        refuse_given(args, FIXED, "stands in the folder of a search that goes on; leave it out, or give another --out")
    if args.retry_failed and not args.resume:
        raise ConfigError("--retry-failed goes with --resume")
    if args.jobs and args.ray != local:
        raise ConfigError(f"--jobs is for --ray {local}; another cluster does as many trials at a time as it has CPUs")
    if not (args.algo or args.resume):
        raise ConfigError(f"--algo is needed: {', '.join(ALGORITHMS)}; or --resume with --out")


def _search_of(args: argparse.Namespace) -> tuple[SearchOptions, Job]:
    """The search that goes on, or a new one, which has no folder yet."""
    from pydantic import ValidationError

    from rlctl.learn.search import SearchOptions, new_search, resumed_search

    if args.resume:
        return resumed_search(args.out)
    try:
        options = SearchOptions.of_arguments(vars(args))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--{first['loc'][0]} {first['input']}: {first['msg'].lower()}") from error
    return options, new_search(options, args.out or Path())


def _print_space(job: Job) -> None:
    """What is searched: the first trial's value of each key, and its range."""
    from rlctl.report.page import render

    rows = [("key", "first trial", "range")]
    for key, draw in job.space.draws.items():
        kind = "choice" if draw.choice is not None else "log_uniform" if draw.log_uniform else "uniform"
        rows.append((key, str(job.space.base[key]), f"{kind}: {json.dumps(list(draw.ends))}"))
    print(f"{job.trials} trials, seeds {job.run.seed} to {job.run.seed + job.trials - 1}\n")
    print(render(rows))


def _search(args: argparse.Namespace, options: SearchOptions, job: Job, cluster: Cluster) -> SearchOutcome:
    """Search, choose, export, write."""
    from rlctl.agents.training.search.tuner import WINNER, export_winner, judge, search
    from rlctl.learn.search import HISTORY, SearchOutcome, ranked
    from rlctl.log.progress import progress

    say(
        f"Ray at {args.ray}: nodes: {len(cluster.nodes)}, CPUs: {cluster.cpus}; each of {job.trials} trials "
        f"takes a CPU and {job.memory_bytes >> 20} MiB"
    )
    with progress(job.trials, "trials") as watch:
        trials = search(job, cluster, watch, retry_failed=args.retry_failed)
    judged = {one.name: one for one in trials if one.folder and not one.error}
    if not judged:
        raise CheckFailed(f"no trial came to its end; {trials[0].name}: {trials[0].error}")
    say(f"choosing among {len(judged)} on {len(job.choice_seeds)} seeds that no trial has seen")
    scores = dict(zip(judged, judge(job, list(judged.values()), cluster), strict=True))
    outcome = SearchOutcome(options, job, trials, {name: scores[name] for name in ranked(scores)})
    export_winner(job, judged[next(iter(outcome.scores))])
    write_whole(job.run.folder / HISTORY, json.dumps(outcome.as_json(), indent=1) + "\n")
    shutil.copyfile(job.run.folder / HISTORY, job.run.folder / WINNER / HISTORY)
    return outcome


def _show(args: argparse.Namespace, outcome: SearchOutcome, out: Path) -> None:
    write_json(args.json, outcome.as_json())
    if args.json == "-":
        return
    print(outcome.tables())
    print("\nshort: QoS points that a trial lacks on those seeds, summed over all scenarios\n")
    print(outcome.summary())
    print(f"{out / 'winner'}: bundle {out / 'winner' / 'bundle'}, history {out / 'winner' / 'history.json'}")
