"""`rlctl sign`: vouch for a bundle, so that a daemon with `policy.trusted_keys` takes it."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """examples:
  ssh-keygen -t ed25519 -f rlctl-key          # once; keep rlctl-key where policies are made
  rlctl sign out/my-policy --key rlctl-key    # writes out/my-policy/bundle.sig

On the host: policy: {name: /opt/my-policy, trusted_keys: [/etc/rlctl/rlctl-key.pub]}. A change of any file of the
bundle, new scores included, makes the signature void. Needs ssh-keygen (openssh-client), here and there.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="a bundle's folder")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help="a private key of ssh-keygen's")


def run(args: argparse.Namespace) -> int:
    """Run the command: write the signature into the bundle."""
    from rlctl.agents.served import bundle

    card = bundle.sign(args.bundle, args.key)
    print(f"{args.bundle / bundle.SIGNATURE}: {card.name}, policy.onnx {card.policy_sha256[:12]}")
    return 0
