"""`rlctl advise`: what a host could have carried, from the log of watching it; nothing is written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from rlctl.agents import catalogue
from rlctl.agents.training.cluster.connection import check_ray, check_reachable
from rlctl.bench.participants import refuse_models
from rlctl.bench.workforce import workforce
from rlctl.commands.arguments import add_workloads, number, positive
from rlctl.commands.options import (
    add_ray,
    distinct_policies,
    distinct_profiles,
    positive_int,
    refuse_given,
    split_names,
)
from rlctl.commands.outputs import Damages, add_json, check_outputs, files_first, write_json
from rlctl.config.serve import LcSection, ServeConfig, load_config
from rlctl.envs.errors import CheckFailed, ConfigError, in_one_line, on_one_line
from rlctl.envs.host.topology import exclusive_cpus
from rlctl.envs.log_lines import log_files
from rlctl.envs.whole_file import write_whole
from rlctl.log.progress import progress
from rlctl.report.advice import Advice, AdviceData, Unanswered, advise, watched
from rlctl.report.advice_page import Answers, page_of, plain_of
from rlctl.report.page import html_page, markdown
from rlctl.safety.profile import DEFAULT, Profile, load_profile
from rlctl.serve.two_names import TwoNames

POLICIES = "frozen,weights,prm-hybrid-tuned,heracles,feedforward,learned-table"

DESCRIPTION = """\
Reads what a service saw of a host, finds simulated hosts that explain it, and lets them live through the same load
under each policy and the shield: how much BE the host could have carried, at which QoS, what would have gone wrong and
when, and which target, maximum load and error budget the log supports. Nothing is written to the host."""

EXAMPLES = """examples:
  rlctl advise --lc nginx.service --be batch.slice   # the same two names as serve; their log in /var/log/rlctl
  rlctl advise --config /etc/rlctl/serve.yaml        # the log and what stands in the configuration
  rlctl advise ticks.jsonl --html advice.html
  rlctl advise ticks.jsonl --shield measured,knee  # each policy behind each of them
  rlctl advise host1/ host2/ host3/ --ray auto       # several hosts, and all together

The best host to ask about is one on which BE has run beside the LC: a log without BE says what is idle, and little of
what BE would do to the LC behind the CPU (a link, a disk, memory). The intervals tell.
"""


Made = TypeVar("Made")
PERCENT = number(float, lambda value: 0.0 < value < 100.0, "is not above 0 and below 100, such as 95")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked about every log.

    Attributes:
        shields: None given asks about the one in the log.
        workloads: Who LC and BE are, where a log was not named; None asks about any.
        own_cpus, quantile_ratio: As `rlctl.report.advice.watched` takes them.
        allowed_percent: Windows that may miss the target.
    """

    policies: tuple[str, ...]
    shields: tuple[Profile, ...]
    own_cpus: float | None
    quantile_ratio: float
    allowed_percent: float
    workloads: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about one log: plain data, so that a worker on another machine needs no file of this one."""

    log: Path
    watched: AdviceData
    asked: Asked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "log", type=Path, nargs="*", metavar="LOG", help="tick logs, each a file or directory of a host"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="serve's configuration: its log, shield and SLO")
    add_workloads(parser, required=False)
    parser.add_argument("--policies", default=POLICIES, metavar="A,B,...", help=f"default: {POLICIES}")
    parser.add_argument(
        "--shield", metavar="NAME|FILE,...", help="one or several; default: the configuration's, else the log's"
    )
    parser.add_argument(
        "--own-cpus", type=positive, metavar="N", help="CPUs of BE's on which the LC never runs (default: as logged)"
    )
    parser.add_argument("--quantile", type=PERCENT, metavar="PERCENT", help="that the target is about (default: 95)")
    parser.add_argument("--allowed", type=PERCENT, metavar="PERCENT", help="windows that may miss (default: 1)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page as HTML")
    parser.add_argument("--workers", type=positive_int, metavar="N", help="processes for several logs")
    add_ray(parser, "a Ray cluster for several logs: local, auto, or HOST:PORT")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed: a log says nothing of a host, or of several some have no advice."""
    check_ray(args.ray, "--workers", args.workers)
    check_outputs(args)
    logs, asked = _parse_request(args)
    if len(logs) == 1:
        refuse_given(args, ("workers", "ray"), "is for several logs")
    check_reachable(args.ray, asked.policies)
    answers = [(str(logs[0]), _one(logs[0], asked))] if len(logs) == 1 else _each(args, logs, asked)
    page = page_of(answers)
    with files_first(lambda: args.json == "-" or print(markdown(page))):
        if args.html:
            write_whole(args.html, html_page("rlctl advise", page))
        write_json(args.json, plain_of(answers))
    if without := [f"{source}: {one.reason}" for source, one in answers if isinstance(one, Unanswered)]:
        raise CheckFailed(f"no advice on {len(without)} of {len(answers)} logs: {'; '.join(without)}")
    return 0


def question_on(log: Path, asked: Asked) -> Question:
    """Read a log here, where its path is known; CheckFailed or ConfigError: it says too little."""
    with Damages() as damaged:
        seen = watched(log_files(log), damaged, own_cpus=asked.own_cpus, quantile_ratio=asked.quantile_ratio)
    if asked.workloads and seen.workloads and seen.workloads != asked.workloads:
        there = on_one_line(str(seen.workloads))
        raise CheckFailed(f"{log} is of another LC or BE: {there}; name the LOG of yours, or --config")
    return Question(log, seen, replace(asked, shields=asked.shields or (seen.shield or load_profile(DEFAULT),)))


def answer(question: Question, done: Callable[[str], None] = lambda _: None) -> Advice:
    """The advice on one log."""
    asked = question.asked
    return advise(question.watched, asked.policies, asked.shields, asked.allowed_percent, done)


def answer_or_reason(question: Question) -> Advice | Unanswered:
    """The advice on one log of several, on a worker."""
    return _or_reason(partial(answer, question))


def _one(log: Path, asked: Asked) -> Advice:
    about = question_on(log, asked)
    with progress(1 + len(asked.policies) * len(about.asked.shields), "steps") as advance:
        return answer(about, advance)


def _each(args: argparse.Namespace, logs: Sequence[Path], asked: Asked) -> Answers:
    """Advice on several logs; one that has none costs the others nothing."""
    with workforce(args.workers, args.ray, logs=args.verbose > 0) as workers:
        read: list[Question | Unanswered] = []
        with progress(len(logs), "logs read") as advance:
            for log in logs:
                read.append(_or_reason(partial(question_on, log, asked)))
                advance(str(log))
        about = [one for one in read if isinstance(one, Question)]
        with progress(len(about), "hosts") as advance:
            found = iter(workers.map(answer_or_reason, about, lambda one: advance(str(one.log))))
        answers = [one if isinstance(one, Unanswered) else next(found) for one in read]
    return list(zip(map(str, logs), answers, strict=True))


def _or_reason(made: Callable[[], Made]) -> Made | Unanswered:
    """What is made, or why it is not."""
    try:
        return made()
    except Exception as error:  # noqa: BLE001 - what no log had before must not lose the hours spent on the others
        return Unanswered(in_one_line(error))


def _parse_request(args: argparse.Namespace) -> tuple[list[Path], Asked]:
    policies = distinct_policies("--policies", split_names(args.policies))
    refuse_models(policies)
    for name in policies:
        catalogue.build(name)  # before any log is read: an unknown one is no fault of a log
    quantile, allowed, own, logs = 95.0, 1.0, None, list(args.log)
    shields = () if args.shield is None else split_names(args.shield)
    workloads, config = None, _configuration(args)
    if config is not None:
        # A window counts as missed where any LC misses it: the strictest budget holds, and the strictest target's tail.
        slos = [lc.slo for lc in config.lcs.values()]
        quantile = min(slos, key=lambda slo: slo.slo.target_seconds).quantile_percent
        allowed = min((slo.error_budget_percent for slo in slos if slo.error_budget_percent), default=allowed)
        shields, own = shields or (config.shield,), _own_cpus(config)
        if not logs:
            logs, workloads = [config.log.directory], config.named_workloads
        if args.lc is not None and not args.log and not any(config.log.directory.glob("ticks.jsonl*")):
            names = f"--lc {args.lc} --be {args.be}"
            raise ConfigError(f"no log yet: run `rlctl serve {names} --target auto` for ten minutes", logs[0])
    if not logs:
        raise ConfigError("name --lc and --be, a LOG, or serve's configuration with --config")
    asked = Asked(
        policies=policies,
        shields=distinct_profiles(shields),
        own_cpus=own if args.own_cpus is None else args.own_cpus,
        quantile_ratio=(args.quantile or quantile) / 100.0,
        allowed_percent=args.allowed or allowed,
        workloads=workloads,
    )
    return logs, asked


def _configuration(args: argparse.Namespace) -> ServeConfig | None:
    """That of the file, or of two names; None where neither is given."""
    if args.lc is None and args.be is None:
        return None if args.config is None else load_config(args.config)
    if args.config is not None or args.lc is None or args.be is None:
        raise ConfigError("give --lc and --be together, or --config FILE alone")
    found = TwoNames.find(args.lc, args.be, "auto")
    print(f"rlctl: {found}", file=sys.stderr)
    return found.config


def _own_cpus(config: ServeConfig) -> float | None:
    """The first CPUs of BE's on which no LC runs, where the configuration names both."""
    lcs: list[LcSection] = list(config.lcs.values())
    if config.be.cpus is None or any(lc.cpus is None for lc in lcs):
        return None
    return float(exclusive_cpus(config.be.cpus, {cpu for lc in lcs for cpu in lc.cpus or ()}))
