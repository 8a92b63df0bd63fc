"""`rlctl config show|check|schema`: a serve configuration as it takes effect, whether it is right, what it may say."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rlctl.config.listening import Listening
from rlctl.config.serve import ServeConfig, describe, load_config, schema
from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.serve.deciders import Configuration

EXAMPLES = """examples:
  rlctl config show serve.yaml            # the configuration in effect; defaults are marked
  rlctl config check serve.yaml           # exit code 0, or 78 and one line with file and line
  rlctl config schema > serve.schema.json # for editors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, summary in (
        ("show", "print the configuration in effect, defaults marked"),
        ("check", "check a file, its policy, its shield profile, certificates, keys, tokens and be.starved.command"),
    ):
        one = actions.add_parser(action, help=summary)
        one.add_argument("file", type=Path, metavar="FILE")
        one.add_argument("--json", action="store_true", help="the configuration in effect as JSON")
    actions.add_parser("schema", help="print the JSON schema of the file")


def run(args: argparse.Namespace) -> int:
    """Run the command: exit code 0 means that the file, and each file that it names, is right."""
    if args.action == "schema":
        print(json.dumps(schema(), indent=1))
        return 0
    config = load_config(args.file)
    if args.action == "check":
        Configuration(args.file, strict=True)
        _look_at("metrics", config.metrics)
        for lc in config.lcs.values():
            _look_at("lc.latency", lc.latency)
        _look_for(config.be.starved.command)
        _look_up(config)
    if args.json:
        print(config.model_dump_json())
    elif args.action == "show":
        print(describe(config), end="")
    else:
        print(f"{args.file}: ok")
    return 0


def _look_at(name: str, section: object) -> None:
    """Certificate, key and token; that they are not here is no mistake in a file that is checked for another host."""
    if not isinstance(section, Listening):
        return
    from rlctl.serve.http_server import check_files  # with asyncio and ssl, which few files need

    try:
        check_files(name, section)
    except (ConfigError, PermissionMissing) as error:
        if not isinstance(error.__cause__, (FileNotFoundError, PermissionError)):
            raise
        print(f"rlctl: warning: {error}: a start as this user on this host would end with that", file=sys.stderr)


def _look_up(config: ServeConfig) -> None:
    """Group and path of the control socket; that they do not fit here is no mistake in another host's file."""
    from rlctl.serve.control_socket import SOCKET, check_socket

    try:
        check_socket(config.state_directory / SOCKET, config.control.group)
    except ConfigError as error:
        print(f"rlctl: warning: {error}: a start on this host would end with that", file=sys.stderr)


def _look_for(command: Sequence[str]) -> None:
    """The program that BE's starving runs; that it is not here is no mistake in a file that is for another host."""
    from rlctl.serve.starving import check_command  # with the loop, which `show` does not need

    try:
        check_command(command)
    except ConfigError as error:
        print(f"rlctl: warning: {error}: on this host nobody would be told that BE starves", file=sys.stderr)
