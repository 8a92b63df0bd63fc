"""`rlctl pause`: BE at the safe allocation until somebody says otherwise."""

from __future__ import annotations

import argparse

from rlctl.commands.asking import add_hold, hold

DESCRIPTION = """Have a running service hold BE at the safe allocation. It stays so over a restart of the service; when
the service ends, BE gets its originals back as ever."""

EXAMPLES = """examples:
  rlctl pause --why "debugging the database"
  rlctl pause --for 2h --config /etc/rlctl/serve.yaml
  rlctl pause --until 06:00
"""

add_arguments = add_hold


def run(args: argparse.Namespace) -> int:
    """Run the command; it ends when BE is safe, HostError: no service is there."""
    return hold(args, "pause")
