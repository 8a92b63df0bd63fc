"""`rlctl merge`: one bundle that answers the mean of several."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """examples:
  rlctl merge runs/ppo/1/bundle runs/ppo/2/bundle runs/ppo/3/bundle --out out/my-policy
  rlctl merge runs/shipped/ppo-*/bundle --out runs/shipped/ppo --name ppo --force

Runs that differ in their seed alone differ in what they do near the knee; their mean is steadier than each. The new
network is compared with the mean of its members on 2000 recorded observations before it is written. Scores are not
carried over: `rlctl evaluate BUNDLE --write-card` makes its own.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("members", type=Path, nargs="+", metavar="BUNDLE", help="two or more, of one learner")
    parser.add_argument("--out", type=Path, required=True, metavar="BUNDLE", help="the new bundle's folder")
    parser.add_argument("--name", help="what the policy is called (default: the folder's name)")
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")


def run(args: argparse.Namespace) -> int:
    """Run the command: write the bundle that answers the mean."""
    from rlctl.agents.served.bundle import CARD, POLICY
    from rlctl.envs.errors import ConfigError, require_installed

    if len(args.members) < 2:
        raise ConfigError("one bundle is its own mean; name two or more")
    if not args.force and any((args.out / name).exists() for name in (CARD, POLICY)):
        raise ConfigError("holds a bundle already; give --force to replace it", args.out)
    require_installed("a merge", "train", "onnx", "onnxruntime")
    from rlctl.agents.training.merge import merge

    card = merge(args.members, args.out, args.name or args.out.resolve().name)
    print(f"{args.out}: {card.name}, mean of {len(args.members)}, policy.onnx {card.policy_sha256[:12]}")
    return 0
