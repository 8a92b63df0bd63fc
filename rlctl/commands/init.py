"""`rlctl init`: the commented configuration for two names and a target."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlctl.commands.arguments import add_names
from rlctl.envs.errors import ConfigError
from rlctl.serve.two_names import TwoNames

DESCRIPTION = "Find two workloads on this host, and write the configuration of `rlctl serve` for them, with comments."

EXAMPLES = """examples:
  rlctl init --lc nginx.service --be batch.slice --target 10ms > serve.yaml
  rlctl init --lc name:redis-server --be /batch --target 2ms --out /etc/rlctl/serve.yaml

A name is a systemd unit or slice, a container, the path of a control group, name:PROCESS, pod:NAMESPACE/NAME, or
qos:CLASS for all pods of a class. container:NAME is a container also where a unit has that name.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, required=True)
    parser.add_argument("--out", type=Path, metavar="FILE", help="a new file; default: stdout")


def run(args: argparse.Namespace) -> int:
    """Find both, and write or print the file."""
    found = TwoNames.find(args.lc, args.be, args.target)
    text, _ = found.file, found.config
    if args.out is None:
        print(text, end="")
        return 0
    try:
        with args.out.open("x") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError("is there already; name another file, or remove it", args.out) from error
    print(f"{args.out}: written; try `rlctl serve --config {args.out} --dry-run`")
    return 0
