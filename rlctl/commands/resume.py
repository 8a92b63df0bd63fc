"""`rlctl resume`: the end of a pause."""

from __future__ import annotations

import argparse

from rlctl.commands.asking import add_service, asked

DESCRIPTION = """End a pause; a limit stays."""

EXAMPLES = """examples:
  rlctl resume
  rlctl resume --config /etc/rlctl/serve.yaml
"""

add_arguments = add_service


def run(args: argparse.Namespace) -> int:
    """Run the command; HostError: no service is there."""
    return asked(args, {"do": "resume"})
