"""Several policies as one: a network that answers the mean of their logits.

Runs that differ in their seed alone differ in what they do near the knee. One is bold there, the next one timid, and
evaluations on few seeds cannot tell which is right. Their mean is steadier than each of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlctl.agents.served import bundle
from rlctl.agents.served.bundle_writer import as_float32, save
from rlctl.agents.served.card import Card, CardParts
from rlctl.agents.served.network import Array, Network, NetworkError
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
    return save(out, name, _parts(cards), network)


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


def mean_network(members: Sequence[Network]) -> Network:
    """The network that answers the mean of the members' outputs: their hidden layers stand beside one another.

    Raises:
        NetworkError: The members differ in inputs, outputs, activation or number of layers.
    """
    first, count = members[0], len(members)
    for other in members[1:]:
        if (other.activation, len(other.weights)) != (first.activation, len(first.weights)) or (
            other.layers[0] != first.layers[0] or other.layers[-1] != first.layers[-1]
        ):
            raise NetworkError(f"of {other.layers} {other.activation} and {first.layers} {first.activation} differ")
    columns = [[member.weights[place] for member in members] for place in range(len(first.weights))]
    biases = [np.concatenate([member.biases[place] for member in members]) for place in range(len(first.biases) - 1)]
    if len(columns) == 1:
        weights = [np.mean(columns[0], axis=0)]
    else:
        weights = [np.vstack(columns[0]), *map(_diagonal, columns[1:-1]), np.hstack(columns[-1]) / np.float32(count)]
    biases.append(np.mean([member.biases[-1] for member in members], axis=0))
    return Network(tuple(map(as_float32, weights)), tuple(map(as_float32, biases)), first.activation)


def _diagonal(blocks: Sequence[Array]) -> Array:
    """One matrix with the given ones along its diagonal and zeros elsewhere."""
    whole = np.zeros((sum(len(block) for block in blocks), sum(block.shape[1] for block in blocks)), np.float32)
    row = column = 0
    for block in blocks:
        whole[row : row + len(block), column : column + block.shape[1]] = block
        row, column = row + len(block), column + block.shape[1]
    return whole
