"""`rlctl export`, `merge` and `sign`: how a bundle comes to be."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlctl.commands import Command
from rlctl.commands.arguments import number

EXPORT_EXAMPLES = """examples:
  rlctl export out/run/best_model.zip --out out/my-policy
  rlctl export model.zip --out configs/bundles/ppo --name ppo --force
  rlctl export model.zip --out short-memory --lags 0
  rlctl export model.zip --out normalized --vec-normalize vecnormalize.pkl
  rlctl export model.zip --out shared --onnx shared/policy.onnx      # for other programs

MODEL.zip holds pickles, and to load it runs what they say: export your own models, on the host that trained them. A
host that serves never loads one; it reads weights.npz and card.json, which hold no code. The network is compared with
the model on 2000 recorded observations, and nothing is written where they differ. The card says what the model itself
knows of its training; `rlctl train` exports its best model by itself, with a card that knows all.
"""

MERGE_EXAMPLES = """examples:
  rlctl merge runs/ppo/1/bundle runs/ppo/2/bundle runs/ppo/3/bundle --out out/my-policy
  rlctl merge runs/shipped/ppo-*/bundle --out runs/shipped/ppo --name ppo --force

Runs that differ in their seed alone differ in what they do near the knee; their mean is steadier than each. Scores are
not carried over: `rlctl evaluate BUNDLE --write-card` makes its own.
"""

SIGN_EXAMPLES = """examples:
  ssh-keygen -t ed25519 -f rlctl-key          # once; keep rlctl-key where policies are made
  rlctl sign out/my-policy --key rlctl-key    # writes out/my-policy/bundle.sig

On the host: policy: {name: /opt/my-policy, trusted_keys: [/etc/rlctl/rlctl-key.pub]}. A change of any file of the
bundle, new scores included, makes the signature void. Needs ssh-keygen (openssh-client), here and there.
"""

TICKS = number(lambda text: tuple(map(int, text.split(","))), bool, "is not a list of ticks, such as 4,2,1,0")


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL.zip", help="PPO, MaskablePPO, DQN or QRDQN; one of your own")
    _add_target(parser, "the bundle's folder")
    lags = "ticks back that it sees, oldest first (default: its run's, else rlctl's own)"
    parser.add_argument("--lags", type=TICKS, help=lags)
    statistics = "the VecNormalize that the model was trained under; its statistics are folded into the network"
    parser.add_argument("--vec-normalize", type=Path, metavar="FILE", help=statistics)
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="write the network as ONNX too, for other programs")


def _add_merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("members", type=Path, nargs="+", metavar="BUNDLE", help="two or more, of one learner")
    _add_target(parser, "the new bundle's folder")


def _add_target(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="BUNDLE", help=what)
    parser.add_argument("--name", help="what the policy is called (default: the folder's name)")
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")


def _add_sign_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="a bundle's folder")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help="a private key of ssh-keygen's")


def run_export(args: argparse.Namespace) -> int:
    """Write the bundle of a model; it is verified before it is written."""
    from rlctl.envs.errors import ConfigError, require_installed
    from rlctl.envs.observation import LAGS

    if unknown := set(args.lags or ()) - set(LAGS):
        raise ConfigError(f"--lags: no bundle has lag {max(unknown)}; choose among {','.join(map(str, LAGS))}")
    _check_free(args)
    require_installed("an export", "train", "torch", "stable_baselines3", "sb3_contrib")
    from rlctl.agents.served.bundle import load
    from rlctl.agents.training.export import export
    from rlctl.agents.training.onnx_file import write_onnx
    from rlctl.agents.training.sb3_model import lags_of, load_model, load_normalizer, parts_of, recorded

    model = load_model(args.model)
    normalizer = load_normalizer(model, args.model, args.vec_normalize)
    parts = parts_of(model, args.model, args.lags or lags_of(args.model, model))
    observations = recorded(parts.lags)
    card = export(
        model, args.out, name=_name(args), card=parts, observations=observations, normalizer=normalizer
    )  # fmt: skip
    if args.onnx:
        write_onnx(load(args.out).network, args.onnx)
    print(
        f"{args.out}: {card.name}, {card.algorithm}, weights.npz {card.policy_sha256[:12]}; "
        f"it moves as the model does on {len(observations)} observations"
    )
    return 0


def run_merge(args: argparse.Namespace) -> int:
    """Write the bundle that answers the mean."""
    from rlctl.agents.served.merge import merge
    from rlctl.envs.errors import ConfigError

    if len(args.members) < 2:
        raise ConfigError("one bundle is its own mean; name two or more")
    _check_free(args)
    card = merge(args.members, args.out, _name(args))
    print(f"{args.out}: {card.name}, mean of {len(args.members)}, weights.npz {card.policy_sha256[:12]}")
    return 0


def run_sign(args: argparse.Namespace) -> int:
    """Write the signature into the bundle."""
    from rlctl.agents.served.bundle import SIGNATURE
    from rlctl.agents.served.bundle_writer import sign

    card = sign(args.bundle, args.key)
    print(f"{args.bundle / SIGNATURE}: {card.name}, weights.npz {card.policy_sha256[:12]}")
    return 0


def _check_free(args: argparse.Namespace) -> None:
    from rlctl.agents.served.bundle import CARD, WEIGHTS
    from rlctl.envs.errors import ConfigError

    if not args.force and any((args.out / name).exists() for name in (CARD, WEIGHTS)):
        raise ConfigError("holds a bundle already; give --force to replace it", args.out)


def _name(args: argparse.Namespace) -> str:
    return str(args.name or args.out.resolve().name)


FAMILY = {
    "export": Command(_add_export_arguments, run_export, EXPORT_EXAMPLES),
    "merge": Command(_add_merge_arguments, run_merge, MERGE_EXAMPLES),
    "sign": Command(_add_sign_arguments, run_sign, SIGN_EXAMPLES),
}
