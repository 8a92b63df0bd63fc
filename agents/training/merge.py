"""Several policies as one: a network that answers the mean of their logits.

Runs that differ in their seed alone differ in what they do near the knee: one is bold there, the next one timid, and
evaluations on few seeds cannot tell which is right. Their mean is steadier than each of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import compose, helper, numpy_helper

from rlctl.agents.served import bundle
from rlctl.agents.served.card import Card, CardParts
from rlctl.agents.served.network import logits_of
from rlctl.agents.training.export import TOLERANCE, to_file
from rlctl.agents.training.sb3_model import recorded
from rlctl.envs.errors import BundleError

SAME = ("algorithm", "tick_seconds", "lags")
"""What members must have in common; logits of different learners do not mean the same."""


def merge(members: Sequence[Path], out: Path, name: str) -> Card:
    """Make one bundle of two or more; what is in the folder by its names is replaced, or nothing is written.

    Raises:
        BundleError: A member is refused, they do not go together, or the network does not answer their mean.
    """
    cards, policies = zip(*(bundle.read(folder) for folder in members), strict=True)
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
    policy = mean_of(policies)
    observations = recorded(cards[0].lags)
    expected = np.mean([logits_of(one, observations) for one in policies], axis=0)
    if not (apart := float(np.abs(logits_of(policy, observations) - expected).max())) <= TOLERANCE:
        raise BundleError(f"the network is off the mean of its members by up to {apart:.3g}; nothing was written")
    return bundle.save(out, name, _parts(cards), policy)


def mean_of(policies: Sequence[bytes]) -> bytes:
    """The ONNX file of the mean, the last layers scaled and added up; BundleError where one is no dense layer."""
    graphs = [_scaled(one, number, 1.0 / len(policies)) for number, one in enumerate(policies)]
    nodes = [node for graph in graphs for node in graph.node]
    total = graphs[0].output[0].name
    for number, graph in enumerate(graphs[1:], start=1):
        made = "logits" if number == len(graphs) - 1 else f"sum{number}"
        nodes.append(helper.make_node("Add", [total, graph.output[0].name], [made]))
        total = made
    ports = onnx.load_model_from_string(policies[0]).graph
    weights = [weight for graph in graphs for weight in graph.initializer]
    return to_file(helper.make_graph(nodes, "policy", list(ports.input), list(ports.output), weights))


def _scaled(policy: bytes, number: int, share: float) -> Any:
    """A member's graph under names of its own, its logits scaled."""
    whole = onnx.load_model_from_string(policy)
    graph = compose.add_prefix(whole, f"member{number}/", rename_inputs=False).graph
    last = graph.node[-1]
    if last.op_type != "Gemm" or last.output[0] != graph.output[0].name:
        raise BundleError(f"the network of member {number} does not end in a dense layer")
    for weight in graph.initializer:
        if weight.name in last.input[1:]:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(share), weight.name))
    return graph


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
