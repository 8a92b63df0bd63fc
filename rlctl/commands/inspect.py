"""`rlctl inspect`: what a bundle is and what its policy does, or what a service has learned of its host."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.safety.profile import DEFAULT

if TYPE_CHECKING:
    from rlctl.agents.served.card import Card, ScoreEstimate
    from rlctl.report.response import Surface

EXAMPLES = """examples:
  rlctl inspect ppo
  rlctl inspect out/my-policy --plot response.png
  rlctl inspect out/my-policy --json
  rlctl inspect /var/lib/rlctl/memory.json

The card is what weights.npz was verified against. The response surface holds a load and a slack, lets the policy move
under the shield, and shows what BE may use in the end.
memory.json in the state directory of `rlctl serve` has what was learned of the host: by load the most that BE had
while the target was kept.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "bundle",
        metavar="BUNDLE|FILE",
        help="a bundle's folder, a learned policy of `rlctl managers`, or a memory.json",
    )
    parser.add_argument("--json", action="store_true", help="card and surfaces, or the memory, as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the surfaces; needs rlctl[cli]")
    parser.add_argument("--shield", default=DEFAULT, metavar="NAME|FILE", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Run the command: show the card, and what the policy does; BundleError says why the bundle would not be served."""
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
    from rlctl.report.memory import in_words
    from rlctl.serve.memory import read_memory

    if args.plot:
        raise ConfigError("--plot: a memory has no response surface; --json has its counts")
    with reading(path):
        host, learned = read_memory(path)
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
