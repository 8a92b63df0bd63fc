"""`rlctl train --offline`: a policy from a dataset alone, judged, exported like any other."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.agents.training.offline.dataset import DatasetFolder, Origin, dataset_folder, read, read_origin
from rlctl.agents.training.recipe import OFFLINE, OfflineRecipe, recipe_file
from rlctl.commands.options import command_line, refuse_given
from rlctl.commands.outputs import check_outputs, write_json
from rlctl.envs.errors import ConfigError
from rlctl.learn.plan import VALIDATION_SEEDS, TrainingOptions, courses_of, new_folder, require_libraries
from rlctl.learn.progress import signals_noted
from rlctl.log.progress import say
from rlctl.report.page import render

if TYPE_CHECKING:
    from rlctl.agents.training.offline.training import OfflineOutcome, OfflineRun, Round

ONLINE_ONLY = (
    *("hosts", "init", "seeds", "n_envs", "max_seconds", "resume"),
    *("explore", "explore_slack", "ray", "ray_wait", "live"),
)
"""Arguments that mean nothing where no host is stepped."""


def run(args: argparse.Namespace) -> int:
    """Run the command; 0, or 128 + n when signal n ended it early. The table goes to stdout, all else to stderr."""
    _check(args)
    require_libraries()
    place = dataset_folder(args.offline)
    recipe = recipe_file(OFFLINE[args.algo], args.algo, Path(args.config) if args.config else None)
    if args.total_timesteps:
        recipe = recipe.model_copy(update={"n_updates": args.total_timesteps})
    effective = "\n".join(_effective(args, place, read_origin(place), recipe))
    check_outputs(args)
    if args.dry_run:
        (say if args.json == "-" else print)(effective)
        return 0
    todo = _run_of(args, place, recipe)
    say(effective)
    say(f"folder: {todo.folder}")
    from rlctl.agents.training.offline.training import learn_offline

    with signals_noted("ending: evaluation, export; once more to end at once") as caught:
        outcome = learn_offline(todo, _tell, lambda: bool(caught))
    write_json(args.json, outcome.as_json())
    if args.json != "-":
        print(_table(outcome))
    return 128 + caught[0] if caught else 0


def _check(args: argparse.Namespace) -> None:
    if args.algo not in OFFLINE:
        raise ConfigError(f"--offline takes --algo {' or '.join(OFFLINE)}; {args.algo or 'nothing'} was given")
    refuse_given(args, ONLINE_ONLY, "means nothing with --offline; leave it out")
    if (args.profile or args.shield) and not args.scenario:
        raise ConfigError("--profile and --shield are for a selection in the simulator: give --scenario, too")


def _run_of(args: argparse.Namespace, place: DatasetFolder, recipe: OfflineRecipe) -> OfflineRun:
    from rlctl.agents.training.offline.training import OfflineRun

    names = ("algo", "offline", "config", "seed", "total_timesteps", "scenario", "shield", "threads")
    given = {name: getattr(args, name) for name in names} | {"seed": args.seed or 0, "threads": args.threads or 1}
    kept = {name: value for name, value in given.items() if value is not None}
    data = read(place)
    courses = courses_of(TrainingOptions.of_arguments(vars(args))) if args.scenario else ()
    folder = args.out or new_folder(args.algo)  # last, so that what is refused makes none
    return OfflineRun(
        algorithm=args.algo,
        recipe=recipe,
        dataset=data,
        folder=folder,
        seed=kept["seed"],
        courses=courses,
        validation_seeds=VALIDATION_SEEDS,
        threads=kept["threads"],
        export=not args.no_export,
        arguments=kept,
        command=command_line("train", {**kept, "profile": tuple(args.profile or ()), "out": folder}),
    )


def _effective(args: argparse.Namespace, place: DatasetFolder, origin: Origin, recipe: OfflineRecipe) -> list[str]:
    """What is learned from, and how."""
    from rlctl.agents.training.offline.learners import teacher_of

    who = f"cloned: {teacher_of(origin)}, the best by QoS, then BE" if args.algo == "bc" else "from all policies"
    return [
        f"algorithm: {args.algo}",
        f"dataset: {place.name} # {origin.transitions} transitions, sha256 {origin.sha256[:12]}; {who}",
        f"selection: {f'in the simulator, on {args.scenario}' if args.scenario else 'on held-out episodes'}",
        f"hyperparameters: # {args.config or f'configs/training/{args.algo}.yaml'}",
        *(f"  {name}: {json.dumps(value)}" for name, value in recipe.model_dump(mode="json").items()),
    ]


def _tell(now: Round) -> None:
    say(f"{now.updates} updates: loss {now.loss:.4f}, agreement {now.agreement:.1%}, criterion {now.criterion:.4f}")


def _table(outcome: OfflineOutcome) -> str:
    rows = [
        (
            str(one.updates),
            f"{one.loss:.4f}",
            f"{100.0 * one.agreement:.1f}",
            f"{one.criterion:.4f}",
            "*" if one is outcome.best else "",
        )
        for one in outcome.rounds
    ]
    cloned = f"cloned {outcome.teacher}; " if outcome.teacher else ""
    return "\n".join(
        [
            render([("updates", "loss", "agreement %", "criterion", "kept"), *rows]),
            "",
            f"{cloned}selected by {outcome.selected_by}",
            f"{len(outcome.run.dataset)} transitions; {outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} s of CPU",
            f"{outcome.run.folder}: " + (f"bundle {outcome.bundle}" if outcome.bundle else "no bundle"),
        ]
    )
