"""`rlctl export`: a trained model becomes a bundle that serves without torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlctl.commands.arguments import number

EXAMPLES = """examples:
  rlctl export out/run/best_model.zip --out out/my-policy
  rlctl export model.zip --out configs/bundles/ppo --name ppo --force
  rlctl export model.zip --out short-memory --lags 0

MODEL.zip holds pickles, and to load it runs what they say: export your own models, on the host that trained them. A
host that serves never loads one; it reads policy.onnx and card.json, which hold no code. The network is compared with
the model on 2000 recorded observations, and nothing is written where they differ. The card says what the model itself
knows of its training; `rlctl train` exports its best model by itself, with a card that knows all.
"""


TICKS = number(lambda text: tuple(map(int, text.split(","))), bool, "is no list of ticks, such as 4,2,1,0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL.zip", help="PPO, MaskablePPO, DQN or QRDQN; one of your own")
    parser.add_argument("--out", type=Path, required=True, metavar="BUNDLE", help="the bundle's folder")
    parser.add_argument("--name", help="what the policy is called (default: the folder's name)")
    lags = "ticks back that it sees, oldest first (default: its run's, else rlctl's own)"
    parser.add_argument("--lags", type=TICKS, help=lags)
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")


def run(args: argparse.Namespace) -> int:
    """Run the command; the bundle is verified before it is written."""
    from rlctl.agents.served.bundle import CARD, POLICY
    from rlctl.envs.errors import ConfigError, require_installed
    from rlctl.envs.observation import LAGS

    if unknown := set(args.lags or ()) - set(LAGS):
        raise ConfigError(f"--lags: no bundle has lag {max(unknown)}; choose among {','.join(map(str, LAGS))}")
    if not args.force and any((args.out / name).exists() for name in (CARD, POLICY)):
        raise ConfigError("holds a bundle already; give --force to replace it", args.out)
    require_installed("an export", "train", "torch", "stable_baselines3", "sb3_contrib", "onnx", "onnxruntime")
    from rlctl.agents.training.export import export
    from rlctl.agents.training.sb3_model import lags_of, load_model, parts_of, recorded

    model = load_model(args.model)
    parts = parts_of(model, args.model, args.lags or lags_of(args.model, model))
    observations = recorded(parts.lags)
    name = args.name or args.out.resolve().name
    card = export(model, args.out, name=name, card=parts, observations=observations)
    print(
        f"{args.out}: {card.name}, {card.algorithm}, policy.onnx {card.policy_sha256[:12]}; "
        f"it moves as the model does on {len(observations)} observations"
    )
    return 0
