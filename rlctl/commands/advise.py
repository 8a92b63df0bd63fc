"""`rlctl advise`: what a host could have carried, from the log of watching it; nothing is written."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlctl.advice.advice import Advice, advise
from rlctl.advice.page import as_json, html, sections, text, total
from rlctl.advice.watched import watched
from rlctl.commands.arguments import add_ray, distinct_policies, listed, positive, positive_int
from rlctl.commands.outputs import add_json, check_outputs, write_json
from rlctl.commands.why import tell_damage
from rlctl.config.serve import LcSection, ServeConfig, load_config
from rlctl.envs.errors import ConfigError
from rlctl.envs.ticklog import log_files
from rlctl.envs.whole_file import write_whole
from rlctl.envs.workload import Weight
from rlctl.safety.profile import load_profile
from rlctl.work.progress import progress
from rlctl.work.workforce import workforce

POLICIES = "frozen,weights,prm-hybrid-tuned,heracles,feedforward,learned-table"

DESCRIPTION = """\
Reads what a service saw of a host, finds simulated hosts that explain it, and lets them live through the same load
under each policy and the shield: how much BE the host could have carried, at which QoS, what would have gone wrong and
when, and which target, maximum load and error budget the log supports. Nothing is written to the host."""

EXAMPLES = """examples:
  rlctl advise --config /etc/rlctl/serve.yaml        # the log and what stands in the configuration
  rlctl advise ticks.jsonl --html advice.html
  rlctl advise host1/ host2/ host3/ --ray auto       # several hosts, and all together

The best host to ask about is one on which BE has run beside the LC: a log without BE says what is idle, and little of
what BE would do to the LC behind the CPU (a link, a disk, memory). The intervals tell.
"""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about one log."""

    log: Path
    policies: tuple[str, ...]
    shield: str | None
    weight: Weight
    own_cpus: float | None
    quantile_ratio: float
    allowed_percent: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "log", type=Path, nargs="*", metavar="LOG", help="tick logs, each a file or directory of a host"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="serve's configuration: its log, shield and SLO")
    parser.add_argument("--policies", default=POLICIES, metavar="A,B,...", help=f"default: {POLICIES}")
    parser.add_argument("--shield", metavar="NAME|FILE", help="default: the configuration's, else the log's")
    parser.add_argument(
        "--weight",
        choices=[Weight.EQUAL.value, Weight.MINIMUM.value],
        default=Weight.MINIMUM.value,
        help="BE's CPU weight while the log was written (default: minimum, as `rlctl serve` gives it)",
    )
    parser.add_argument(
        "--own-cpus", type=positive, metavar="N", help="CPUs of BE's on which the LC never runs (default: by the sizes)"
    )
    parser.add_argument("--quantile", type=positive, metavar="PERCENT", help="that the target is about (default: 95)")
    parser.add_argument("--allowed", type=positive, metavar="PERCENT", help="windows that may miss (default: 1)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page as HTML")
    parser.add_argument("--workers", type=positive_int, metavar="N", help="processes for several logs")
    add_ray(parser, "a Ray cluster for several logs: local, auto, or HOST:PORT")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed: a log says nothing of a host."""
    check_outputs(args)
    questions = _questions(args)
    if len(questions) == 1:
        with progress(1 + len(questions[0].policies), "steps") as advance:
            answers = [answer(questions[0], advance)]
    else:
        with workforce(args.workers, args.ray) as workers, progress(len(questions), "hosts") as advance:
            answers = workers.map(answer, questions, lambda question: advance(str(question.log)))
    advised = list(zip([str(question.log) for question in questions], answers, strict=True))
    page = [section for source, advice in advised for section in sections(source, advice)]
    if len(advised) > 1:
        page.append(total(advised))
    if args.json != "-":
        print(text(page))
    if args.html:
        write_whole(args.html, html(page))
    plain = [as_json(source, advice) for source, advice in advised]
    write_json(args.json, plain[0] if len(plain) == 1 else {"schema": 1, "hosts": plain})
    return 0


def answer(question: Question, done: Callable[[str], None] = lambda _: None) -> Advice:
    """The advice on one log; on a worker, too."""
    seen = watched(
        log_files(question.log),
        tell_damage,
        weight=question.weight,
        own_cpus=question.own_cpus,
        quantile_ratio=question.quantile_ratio,
    )
    shield = load_profile(question.shield) if question.shield else seen.shield or load_profile("responsive")
    return advise(seen, question.policies, shield, question.allowed_percent, done)


def _questions(args: argparse.Namespace) -> list[Question]:
    policies = distinct_policies("--policies", listed(args.policies))
    quantile, allowed, shield, own, logs = 95.0, 1.0, None, None, list(args.log)
    if args.config is not None:
        config = load_config(args.config)
        slo = next(iter(config.lcs.values())).slo
        quantile, allowed, shield = slo.quantile_percent, slo.error_budget_percent or allowed, config.shield
        own = _own_cpus(config)
        logs = logs or [config.log.directory]
    if not logs:
        raise ConfigError("name a LOG, or serve's configuration with --config")
    if (given := args.quantile or quantile) >= 100.0:
        raise ConfigError(f"--quantile {given:g}: below 100")
    own = own if args.own_cpus is None else args.own_cpus
    given_shield, weight, allowed = args.shield or shield, Weight(args.weight), args.allowed or allowed
    return [Question(log, policies, given_shield, weight, own, given / 100.0, allowed) for log in logs]


def _own_cpus(config: ServeConfig) -> float | None:
    """CPUs of BE's that are none of an LC's, where the configuration names both."""
    lcs: list[LcSection] = list(config.lcs.values())
    if config.be.cpus is None or any(lc.cpus is None for lc in lcs):
        return None
    return float(len(set(config.be.cpus) - {cpu for lc in lcs for cpu in lc.cpus or ()}))
