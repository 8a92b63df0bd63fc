"""`rlctl config show|check|schema` and `rlctl init`: a serve configuration as it takes effect, and a first one."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands import Command
from rlctl.commands.arguments import add_names
from rlctl.config.serve import ServeConfig, describe, load_config, schema
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, RlctlError
from rlctl.serve.policy_setup import Configuration
from rlctl.serve.two_names import TwoNames

if TYPE_CHECKING:
    from rlctl.envs.host.cgroup.group import Group

CONFIG_EXAMPLES = """examples:
  rlctl config show serve.yaml            # the configuration in effect; defaults are marked
  rlctl config check serve.yaml           # exit code 0, or 78 and one line with file and line
  rlctl config schema > serve.schema.json # for editors
"""

INIT_DESCRIPTION = (
    "Find two workloads on this host, and write the configuration of `rlctl serve` for them, with comments."
)

INIT_EXAMPLES = """examples:
  rlctl init --lc nginx.service --be batch.slice --target 10ms > serve.yaml
  rlctl init --lc name:redis-server --be /batch --target 2ms --out /etc/rlctl/serve.yaml

A name is a systemd unit or slice, a container, the path of a control group, name:PROCESS, pod:NAMESPACE/NAME, or
qos:CLASS for all pods of a class. container:NAME is a container also where a unit has that name.
"""

HERE = "a start on this host would end with that"
AS_USER = "a start as this user on this host would end with that"


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `rlctl config`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, summary in (
        ("show", "print the configuration in effect, defaults marked"),
        (
            "check",
            "check a file, its policy and shield profile, and what it names: certificates, tokens, platform, command",
        ),
    ):
        one = actions.add_parser(action, help=summary)
        one.add_argument("file", type=Path, metavar="FILE")
        one.add_argument("--json", action="store_true", help="the configuration in effect as JSON")
    actions.add_parser("schema", help="print the JSON schema of the file")


def look_at_file(args: argparse.Namespace) -> int:
    """`rlctl config`: exit code 0 means that the file, and each file that it names, is right."""
    if args.action == "schema":
        print(json.dumps(schema(), indent=1))
        return 0
    config = load_config(args.file)
    if args.action == "check":
        Configuration(args.file, strict=True)
        _of_this_host(config)
    if args.json:
        print(config.model_dump_json())
    elif args.action == "show":
        print(describe(config), end="")
    else:
        print(f"{args.file}: ok")
    return 0


def _of_this_host(config: ServeConfig) -> None:
    """Look at what the file names on this host: what is missing here is no mistake in a file that is for another."""
    from rlctl.envs.host.partition.platform import load_platform  # here, as `show` needs none of them
    from rlctl.serve.control_socket import SOCKET, check_socket
    from rlctl.serve.starvation import check_command

    check_overlap(config)
    if config.metrics is not None:
        from rlctl.serve.metrics_server import Secrets  # with prometheus_client, which few files need

        _looked_at(partial(Secrets, config.metrics), AS_USER, of_file=True)
    _looked_at(
        partial(check_command, config.be.starved.command), "on this host the command for a starved BE would not run"
    )
    _looked_at(partial(check_socket, config.state_directory / SOCKET, config.control.group), HERE)
    applications = config.be.applications
    if applications and (platform := applications.platform_source):
        _looked_at(partial(load_platform, platform), HERE)


def _looked_at(check: Callable[[], object], then: str, *, of_file: bool = False) -> None:
    """Warn of what does not fit this host; what a file that is there says is an error all the same."""
    try:
        check()
    except (ConfigError, HostError, PermissionMissing) as error:
        if of_file and not isinstance(error.__cause__, (FileNotFoundError, PermissionError)):
            raise
        print(f"rlctl: warning: {error}: {then}", file=sys.stderr)


def check_overlap(config: ServeConfig) -> None:
    """Refuse a file whose BE and LC overlap on this host, as `serve` would; groups that are not here are left out.

    Raises:
        ConfigError: A group of BE and one of an LC overlap.
    """
    from rlctl.envs.host.cgroup.knobs import Knobs
    from rlctl.envs.host.cgroup.layout import Layout
    from rlctl.serve.workloads import be_group, groups_of, raise_if_overlapping

    lcs: list[Group] = []
    be: list[Group] = []
    # A host without control groups, or a platform that is not this one's.
    with contextlib.suppress(RlctlError):
        layout, knobs = Layout.detect(), Knobs(None, dry_run=True)
        wanted = [(lcs, section.workload) for section in config.lcs.values()]
        wanted += [(be, workload) for workload in be_group(config, layout, make=False).workloads]
        for groups, workload in wanted:
            # A workload that does not run here now cannot overlap.
            with contextlib.suppress(RlctlError):
                groups += groups_of(workload, layout, knobs)
    raise_if_overlapping(lcs, be)


def add_init_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `rlctl init`."""
    add_names(parser, required=True)
    parser.add_argument("--out", type=Path, metavar="FILE", help="a new file; default: stdout")


def write_file(args: argparse.Namespace) -> int:
    """`rlctl init`: find both, and write or print the file."""
    found = TwoNames.find(args.lc, args.be, args.target)
    check_overlap(found.config)
    if args.out is None:
        print(found.file, end="")
        return 0
    try:
        with args.out.open("x") as file:
            file.write(found.file)
    except FileExistsError as error:
        raise ConfigError("is there already; name another file, or remove it", args.out) from error
    print(f"{args.out}: written; try `rlctl serve --config {args.out} --dry-run`")
    return 0


FAMILY = {
    "config": Command(add_config_arguments, look_at_file, CONFIG_EXAMPLES),
    "init": Command(add_init_arguments, write_file, INIT_EXAMPLES, INIT_DESCRIPTION),
}
