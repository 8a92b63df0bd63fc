"""`rlctl release`: the end of a limit."""

from __future__ import annotations

import argparse

from rlctl.commands.asking import add_service, asked

DESCRIPTION = """End a limit; a pause stays."""

EXAMPLES = """examples:
  rlctl release
  rlctl release --state /var/lib/rlctl
"""

add_arguments = add_service


def run(args: argparse.Namespace) -> int:
    """Run the command; HostError: no service is there."""
    return asked(args, {"do": "release"})
