"""`rlctl serve`: the control loop on this host, until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from rlctl.commands.arguments import add_names, positive
from rlctl.config.serve import ServeConfig, describe
from rlctl.envs.errors import ConfigError
from rlctl.log.stderr import log_to_stderr
from rlctl.loop.stopping import stop_on_signals
from rlctl.serve.policy_setup import Configuration
from rlctl.serve.self_usage import ahead_of_others, bounded_memory
from rlctl.serve.service import serve
from rlctl.serve.two_names import TwoNames

log = logging.getLogger("rlctl.serve")

DESCRIPTION = "Hold best-effort work to what the latency-critical service leaves, under a safety shield."

EXAMPLES = """examples:
  rlctl serve --lc nginx.service --be batch.slice --target 10ms   # `rlctl init` writes these to a file
  rlctl serve --config serve.yaml --dry-run --duration 60   # shows what it would do, writes nothing
  rlctl serve --config serve.yaml
  rlctl serve --config serve.yaml --policy weights --json
  rlctl serve --config serve.yaml --policy ./my-policy      # a bundle; never needs torch

SIGTERM or SIGINT stops it, at once or after the tick that it is in; it then puts back what it found and exits with 0.
SIGHUP reads the file again: policy, fallback and shield are exchanged between two ticks, and a file with a mistake
changes nothing.
After a crash the watchdog takes BE to the safe allocation at once, and puts everything back if no start follows;
`rlctl restore` does the latter by hand.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="see configs/serve/example.yaml")
    add_names(parser, required=False)
    parser.add_argument(
        "--policy",
        metavar="NAME|BUNDLE",
        help="another policy than the file's: from `rlctl managers`, or a bundle's folder with a slash in it",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="a bundle that is refused ends the start even where the file has a fallback section",
    )
    parser.add_argument("--dry-run", action="store_true", help="read, decide and say, but write nothing")
    parser.add_argument("--duration", type=positive, metavar="SECONDS", help="stop by itself after this time")
    parser.add_argument("--json", action="store_true", help="changes, summaries and totals as JSON lines on stdout")


def _read_names(args: argparse.Namespace) -> ServeConfig | None:
    """The configuration for two names and a target; None for that of a file."""
    names = {"--lc": args.lc, "--be": args.be, "--target": args.target}
    missing = [option for option, value in names.items() if value is None]
    if args.config is not None and len(missing) < len(names):
        raise ConfigError("--config FILE names LC, BE and target; `rlctl init` makes a file of --lc, --be and --target")
    if args.config is not None:
        return None
    if missing:
        raise ConfigError(f"{' and '.join(missing)} must be given too, such as `rlctl serve --lc nginx.service --be "
                          "batch.slice --target 10ms`; or give --config FILE")  # fmt: skip
    found = TwoNames.find(args.lc, args.be, args.target)
    print(f"rlctl: {found}", file=sys.stderr)
    return found.config


def run(args: argparse.Namespace) -> int:
    """Run the command; a stop on request is a success."""
    given = _read_names(args)
    configuration = Configuration(args.config, args.policy, strict=args.strict, given=given)
    config = configuration.config
    log_to_stderr(logging.DEBUG if args.verbose else logging.INFO)
    if args.verbose:
        log.info("configuration in effect:")
        print(describe(config).rstrip(), file=sys.stderr, flush=True)  # a log line has no second line
    bounded = bounded_memory(config.limits.memory_bytes)
    with bounded, ahead_of_others(), stop_on_signals(configuration.reload) as stop:
        serve(configuration, stop, dry_run=args.dry_run, seconds=args.duration, as_json=args.json)
    return 0
