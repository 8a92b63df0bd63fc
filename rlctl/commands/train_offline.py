"""`rlctl train --offline`: a policy from a dataset alone, judged, exported like any other."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands.outputs import check_outputs
from rlctl.envs.errors import ConfigError
from rlctl.work.progress import say

if TYPE_CHECKING:
    from rlctl.agents.training.offline.recipe import OfflineRecipe
    from rlctl.agents.training.offline.run import OfflineOutcome, OfflineRun, Round
    from rlctl.agents.training.trial import Course

__all__ = ["run"]

ONLINE_ONLY = (
    "hosts",
    "init",
    "seeds",
    "n_envs",
    "max_seconds",
    "resume",
    "explore",
    "explore_slack",
    "ray",
    "ray_wait",
    "live",
)
"""Arguments that mean nothing where no host is stepped."""


def run(args: argparse.Namespace) -> int:
    """Run the command; the table goes to stdout, all else to stderr.

    Raises:
        ConfigError: Something that is asked for cannot be, or a library is not installed.
    """
    from rlctl.training.plan import require_libraries

    _check(args)
    require_libraries(export=not args.no_export)
    if args.dry_run:
        print("\n".join(_effective(args)))
        return 0
    check_outputs(args)
    todo = _run_of(args)
    say("\n".join(_effective(args)))
    say(f"folder: {todo.folder}")
    from rlctl.agents.training.offline.run import learn_offline

    outcome = learn_offline(todo, _tell)
    if args.json not in (None, "-"):
        Path(args.json).write_text(json.dumps(outcome.as_json(), indent=1) + "\n")
    print(json.dumps(outcome.as_json()) if args.json == "-" else _table(outcome))
    return 0


def _check(args: argparse.Namespace) -> None:
    from rlctl.agents.training.offline.recipe import OFFLINE

    if args.algo not in OFFLINE:
        raise ConfigError(f"--offline takes --algo {' or '.join(OFFLINE)}; {args.algo or 'nothing'} was given")
    if given := [name for name in ONLINE_ONLY if getattr(args, name) is not None]:
        raise ConfigError(f"--{given[0].replace('_', '-')} means nothing with --offline; leave it out")
    if (args.profile or args.shield) and not args.scenario:
        raise ConfigError("--profile and --shield are for a selection in the simulator: give --scenario, too")


def _recipe(args: argparse.Namespace) -> OfflineRecipe:
    from rlctl.agents.training.offline.recipe import load_offline_recipe

    recipe = load_offline_recipe(args.algo, Path(args.config) if args.config else None)
    return recipe.model_copy(update={"n_updates": args.total_timesteps} if args.total_timesteps else {})


def _run_of(args: argparse.Namespace) -> OfflineRun:
    from rlctl.agents.training.offline.dataset import read
    from rlctl.agents.training.offline.origin import place_of
    from rlctl.agents.training.offline.run import OfflineRun
    from rlctl.training.plan import VALIDATION_SEEDS, next_folder

    folder = args.out or next_folder(args.algo)
    given = {
        "algo": args.algo,
        "offline": args.offline,
        "config": args.config,
        "seed": args.seed or 0,
        "total_timesteps": args.total_timesteps,
        "scenario": args.scenario,
        "shield": args.shield,
        "threads": args.threads or 1,
    }
    kept = {name: value for name, value in given.items() if value is not None}
    words = [word for name, value in kept.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += [word for file in args.profile or () for word in ("--profile", file)]
    return OfflineRun(
        algorithm=args.algo,
        recipe=_recipe(args),
        dataset=read(place_of(args.offline)),
        folder=folder,
        seed=args.seed or 0,
        courses=_courses(args),
        validation_seeds=VALIDATION_SEEDS,
        threads=args.threads or 1,
        export=not args.no_export,
        arguments=kept,
        command=shlex.join(["rlctl", "train", *words, "--out", str(folder)]),
    )


def _courses(args: argparse.Namespace) -> tuple[Course, ...]:
    """Those of a run that learns in the simulator."""
    if not args.scenario:
        return ()
    from rlctl.scenarios.sim import SUITE
    from rlctl.training.plan import Asked, courses_of

    names = SUITE if args.scenario == "all" else tuple(args.scenario.split(","))
    return courses_of(
        Asked(
            algorithm=args.algo,
            seed=args.seed or 0,
            scenarios=names,
            profiles=tuple(args.profile or ()),
            shield=args.shield or "responsive",
        )
    )


def _effective(args: argparse.Namespace) -> list[str]:
    """What is learned from, and how."""
    from rlctl.agents.training.offline.learners import teacher_of
    from rlctl.agents.training.offline.origin import place_of, read_origin

    place = place_of(args.offline)
    origin, recipe = read_origin(place), _recipe(args)
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
    from rlctl.report.table import render

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
    taught = f"cloned {outcome.teacher}; " if outcome.teacher else ""
    return "\n".join(
        [
            render([("updates", "loss", "agreement %", "criterion", "kept"), *rows]),
            "",
            f"{taught}selected by {outcome.selected_by}",
            f"{len(outcome.run.dataset)} transitions; {outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} s of CPU",
            f"{outcome.run.folder}: " + (f"bundle {outcome.bundle}" if outcome.bundle else "no bundle"),
        ]
    )
