"""`rlctl export`, `merge`, `sign` and `inspect`: how a bundle comes to be, and what it is."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands import Command
from rlctl.commands.arguments import number
from rlctl.safety.profile import DEFAULT

if TYPE_CHECKING:
    from rlctl.agents.served.card import Card, ScoreEstimate
    from rlctl.report.response import Surface

EXPORT_EXAMPLES = """examples:
  rlctl export out/run/best_model.zip --out out/my-policy
  rlctl export model.zip --out configs/bundles/ppo --name ppo --force
  rlctl export model.zip --out short-memory --lags 0
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

INSPECT_EXAMPLES = """examples:
  rlctl inspect ppo
  rlctl inspect out/my-policy --plot response.png
  rlctl inspect out/my-policy --json
  rlctl inspect /var/lib/rlctl/memory.json

The card is what weights.npz was verified against. The response surface holds a load and a slack, lets the policy move
under the shield, and shows what BE may use in the end.
memory.json in the state directory of `rlctl serve` has what was learned of the host: by load the most that BE had
while the target was kept.
"""

TICKS = number(lambda text: tuple(map(int, text.split(","))), bool, "is not a list of ticks, such as 4,2,1,0")


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL.zip", help="PPO, MaskablePPO, DQN or QRDQN; one of your own")
    _add_target(parser, "the bundle's folder")
    lags = "ticks back that it sees, oldest first (default: its run's, else rlctl's own)"
    parser.add_argument("--lags", type=TICKS, help=lags)
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
    from rlctl.agents.served.bundle import CARD, SIGNATURE, WEIGHTS, load
    from rlctl.commands.outputs import check_outputs
    from rlctl.envs.errors import ConfigError, require_installed
    from rlctl.envs.observation import LAGS

    if unknown := set(args.lags or ()) - set(LAGS):
        raise ConfigError(f"--lags: no bundle has lag {max(unknown)}; choose among {','.join(map(str, LAGS))}")
    _check_free(args)
    onnx = args.onnx
    if onnx and (onnx.name in (CARD, WEIGHTS, SIGNATURE) or onnx.resolve() == args.out.resolve()):
        raise ConfigError("is a name of the bundle's; take another for --onnx", onnx)
    libraries = ("torch", "stable_baselines3", "sb3_contrib", *(("onnx",) if onnx else ()))
    require_installed("an export", "train", *libraries)
    check_outputs(args)
    if onnx and onnx.exists() and not args.force:
        raise ConfigError("is there already; give --force to replace it", onnx)
    from rlctl.agents.training.export import export
    from rlctl.agents.training.onnx_file import write_onnx
    from rlctl.agents.training.sb3_model import lags_of, load_model, parts_of, recorded

    model = load_model(args.model)
    parts = parts_of(model, args.model, args.lags or lags_of(args.model, model))
    observations = recorded(parts.lags)
    card = export(model, args.out, name=_name(args), card=parts, observations=observations)
    if onnx:
        write_onnx(load(args.out).network, onnx)
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


def _add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bundle",
        metavar="BUNDLE|FILE",
        help="a bundle's folder, a learned policy of `rlctl managers`, or a memory.json",
    )
    parser.add_argument("--json", action="store_true", help="card and surfaces, or the memory, as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the surfaces; needs rlctl[cli]")
    parser.add_argument("--shield", default=DEFAULT, metavar="NAME|FILE", help="default: %(default)s")


def run_inspect(args: argparse.Namespace) -> int:
    """Show the card, and what the policy does; BundleError says why the bundle would not be served."""
    from rlctl.agents import catalogue
    from rlctl.agents.served import bundle

    if args.bundle.endswith(".json"):
        return _memory(Path(args.bundle), args)
    folder = catalogue.folder_of(args.bundle)
    card, _ = bundle.read(folder)
    if not args.json:
        from rlctl.envs.errors import printable

        print("\n".join(map(printable, _in_words(card))), flush=True)  # a bundle may be anybody's
    surfaces = _surfaces(folder, args)
    if args.plot:
        _plot(surfaces, card, args)
    if args.json:
        responses = [one.as_json() for one in surfaces]
        print(json.dumps({"card": card.model_dump(mode="json", by_alias=True), "response": responses}))
        return 0
    from rlctl.report.response import text

    for one in surfaces:
        print("", text(one), sep="\n")
    return 0


def _memory(path: Path, args: argparse.Namespace) -> int:
    from rlctl.envs.errors import ConfigError, reading
    from rlctl.report.response import in_words
    from rlctl.serve.memory import MOST_BYTES, parse_memory

    if args.plot:
        raise ConfigError("--plot: a memory has no response surface; --json has its counts")
    with reading(path), path.open("rb") as stream:
        host, learned = parse_memory(path, stream.read(MOST_BYTES))
    if args.json:
        print(json.dumps({"host": host, "learned": learned}))
        return 0
    print("\n".join(in_words(host, learned)))
    return 0


def _surfaces(folder: Path, args: argparse.Namespace) -> list[Surface]:
    from rlctl.agents.served import bundle
    from rlctl.report.response import HOSTS, surface
    from rlctl.safety.profile import load_profile

    shield = load_profile(args.shield)
    policy = bundle.load(folder)
    return [surface(policy, host, shield) for host in HOSTS]


def _plot(surfaces: list[Surface], card: Card, args: argparse.Namespace) -> None:
    from rlctl.report.figures import png
    from rlctl.report.response import draw

    figure = draw(surfaces, f"{card.name} ({card.policy_sha256[:12]}) under shield {args.shield}")
    args.plot.write_bytes(png(figure))
    print(f"plot: {args.plot}", file=sys.stderr)


def _in_words(card: Card) -> Iterator[str]:
    seen, training = card.observation, card.training
    yield f"{card.name}: {card.algorithm}, exported {card.created} by rlctl {card.rlctl_version}"
    yield f"weights.npz: sha256 {card.policy_sha256}"
    yield f"network: {' > '.join(map(str, card.network.layers))}, {card.network.activation}"
    history = ", ".join(f"-{lag}" if lag else "now" for lag in seen.lags)
    yield (
        f"sees: {seen.size} numbers, version {seen.version}: {len(seen.features)} features at ticks {history}, "
        f"a tick being {card.tick_seconds:g} s"
    )
    yield f"features: {', '.join(row.name for row in seen.features)}"
    yield f"of what the host has taught: {', '.join(seen.experience)}; and the price of a violation"
    yield f"moves, version {card.action.version}: {', '.join(move.name for move in card.action.moves)}"
    runs = f"{len(training.members)} runs merged" if training.members else f"seed {training.seed}"
    yield (
        f"trained: {training.total_timesteps} ticks in {training.wall_seconds:.0f} s, {runs}, code "
        f"{training.code}, run {training.training_id[:12]}"
    )
    for plant in card.plants:
        shield = f"shield {plant.shield} ({plant.shield_digest})" if plant.shield else "no shield"
        absent = f", without {', '.join(plant.absent)}" if plant.absent else ""
        drawn = f", {len(plant.ranges)} constants drawn" if plant.ranges else ""
        kind = f"{plant.hosts} x {plant.profile} ({plant.digest})"
        yield f"  on {kind}, BE weight {plant.weight}, {shield}{absent}{drawn}"
    if card.scores is None:
        yield "scores: none; `rlctl evaluate` adds them"
        return
    for scenario, by_shield in card.scores.items():
        for shield, score in by_shield.items():
            yield (
                f"score {scenario}, {shield}: QoS {_format_score(score.qos_guarantee_percent)} %, "
                f"BE {_format_score(score.be_throughput_percent)} %, "
                f"overridden {_format_score(score.shield_override_percent)} % ({score.seeds} seeds)"
            )


def _format_score(estimate: ScoreEstimate) -> str:
    low, high = estimate.ci95
    return f"{estimate.mean:.2f} [{low:.2f}, {high:.2f}]"


FAMILY = {
    "export": Command(_add_export_arguments, run_export, EXPORT_EXAMPLES),
    "merge": Command(_add_merge_arguments, run_merge, MERGE_EXAMPLES),
    "sign": Command(_add_sign_arguments, run_sign, SIGN_EXAMPLES),
    "inspect": Command(_add_inspect_arguments, run_inspect, INSPECT_EXAMPLES),
}
