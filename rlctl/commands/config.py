"""`rlctl config show|check|schema`: a serve configuration as it takes effect, whether it is right, what it may say."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rlctl.config.serve import describe, load_config, schema

__all__ = ["add_parser", "run"]

EXAMPLES = """examples:
  rlctl config show serve.yaml            # the configuration in effect; defaults are marked
  rlctl config check serve.yaml           # exit code 0, or 78 and one line with file and line
  rlctl config schema > serve.schema.json # for editors
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = subparsers.add_parser(
        "config",
        help="show, check or describe a serve configuration",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, summary in (
        ("show", "print the configuration in effect, defaults marked"),
        ("check", "check a file, its policy and its shield profile"),
    ):
        one = actions.add_parser(action, help=summary)
        one.add_argument("file", type=Path, metavar="FILE")
        one.add_argument("--json", action="store_true", help="the configuration in effect as JSON")
    actions.add_parser("schema", help="print the JSON schema of the file")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        ConfigError: The file, its policy or its shield profile is wrong.
    """
    if args.action == "schema":
        print(json.dumps(schema(), indent=1))
        return 0
    config = load_config(args.file)
    if args.action == "check":
        from rlctl.deciding import fallback_of, policy_of, profile_of

        fallback_of(config, policy_of(config, args.file), args.file, config.tick_seconds)
        profile_of(config, args.file)
    if args.json:
        print(config.model_dump_json())
    elif args.action == "show":
        print(describe(config), end="")
    else:
        print(f"{args.file}: ok")
    return 0
