"""Several policies as one: a network that answers the mean of their logits.

Runs that differ in their seed alone differ in what they do near the knee. One is bold there, the next one timid, and
evaluations on few seeds cannot tell which is right. Their mean is steadier than each of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from rlctl.agents.served import bundle
from rlctl.agents.served.card import Card, CardParts
from rlctl.agents.served.network import NetworkError, mean_network
from rlctl.envs.errors import BundleError

SAME = ("algorithm", "tick_seconds", "lags")
"""What members must have in common; logits of different learners do not mean the same."""


def merge(members: Sequence[Path], out: Path, name: str) -> Card:
    """Make one bundle of two or more; what is in the folder by its names is replaced, or nothing is written.

    Raises:
        BundleError: A member is refused, or they do not go together.
    """
    cards, networks = zip(*(bundle.read(folder) for folder in members), strict=True)
    for key in SAME:
        if len({getattr(card, key) for card in cards}) > 1:
            told = ", ".join(str(getattr(card, key)) for card in cards)
            raise BundleError(
                f"these policies have no common {key}: {told}; merge runs that differ in their seed alone"
            )
    discounts = {card.training.hyperparameters.get("gamma") for card in cards}
    if not cards[0].algorithm.endswith("PPO") and len(discounts) > 1:  # values of another scale
        told = ", ".join(map(str, sorted(discounts, key=str)))
        raise BundleError(f"these policies have no common gamma: {told}; merge runs that differ in their seed alone")
    try:
        network = mean_network(networks)
    except NetworkError as error:
        raise BundleError(f"these policies have no common shape: networks {error}") from error
    return bundle.save(out, name, _parts(cards), network)


def _parts(cards: Sequence[Card]) -> CardParts:
    """All that the members learned on and from; the first one's settings stand for all."""
    plants = tuple({plant.model_dump_json(): plant for card in cards for plant in card.plants}.values())
    runs, first = [card.training for card in cards], cards[0]
    training = first.training.model_copy(
        update={
            "total_timesteps": sum(run.total_timesteps for run in runs),
            "wall_seconds": round(sum(run.wall_seconds for run in runs), 1),
            "training_id": hashlib.sha256("".join(run.training_id for run in runs).encode()).hexdigest(),
            "members": tuple(card.policy_sha256 for card in cards),
        }
    )
    return CardParts(
        algorithm=first.algorithm, tick_seconds=first.tick_seconds, lags=first.lags, plants=plants, training=training
    )
