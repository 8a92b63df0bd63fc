"""`rlctl completion`: what bash, zsh and fish need to complete commands, options and names."""

from __future__ import annotations

import argparse
from importlib.resources import files

SCRIPTS = {"bash": "rlctl", "zsh": "_rlctl", "fish": "rlctl.fish"}
"""Each shell's script in configs/deploy/completion, by the name under which the shell looks for it."""

DESCRIPTION = "Print the completion script of a shell."

EXAMPLES = """examples:
  rlctl completion bash > /etc/bash_completion.d/rlctl                     # for all users; needs bash-completion
  source <(rlctl completion bash)                                          # for this shell only
  rlctl completion zsh > /usr/local/share/zsh/site-functions/_rlctl
  rlctl completion fish > ~/.config/fish/completions/rlctl.fish

A new shell has it. It knows the names of managers, scenarios, safety profiles and platforms that ship; it starts no
Python.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="whose script is printed")


def run(args: argparse.Namespace) -> int:
    """Run the command: print the script that ships."""
    script = files("rlctl") / "configs" / "deploy" / "completion" / SCRIPTS[args.shell]
    print(script.read_text(encoding="utf-8"), end="")
    return 0
