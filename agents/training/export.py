"""From a model of Stable-Baselines3 to a bundle, verified before anything is written.

The layers are read one by one: the same weights give the same bytes, and a layer that is not dense or an activation is
refused by its name. A quantile network's mean is folded into its last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib import QRDQN, MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from rlctl.agents.served.bundle_writer import as_file, save
from rlctl.agents.served.card import Card, CardParts, ObservationTable
from rlctl.agents.served.network import Array, Network, NetworkError
from rlctl.agents.training.algorithms import tensor_logits
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError

FEWEST = 1000
"""Observations that the network is compared on."""

TOLERANCE = 1e-4
"""Largest difference of a logit; moves that differ by less are equally good."""

ALGORITHMS = {one.__name__: one for one in (PPO, MaskablePPO, DQN, QRDQN)}
"""Learners whose models can be exported."""

_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.Tanh: "tanh",
    nn.ReLU: "relu",
    nn.Sigmoid: "sigmoid",
    nn.LeakyReLU: "leaky_relu",
    nn.ELU: "elu",
}
_OWN_CONSTANTS = {nn.LeakyReLU: ("negative_slope", 0.01), nn.ELU: ("alpha", 1.0)}


def export(model: Any, out: Path, *, name: str, card: CardParts, observations: Array) -> Card:
    """Turn a model into a bundle; what is in the folder by its names is replaced.

    Args:
        model: Of one of ALGORITHMS, with a dense network.
        observations: float32, shape (n, size) with n >= FEWEST, as recorded from hosts: the network must choose as the
            model does on every one of them.

    Raises:
        BundleError: The model is of another kind, does not fit rlctl's observations and moves, or the network and the
            model disagree. Nothing is written then.
    """
    network = network_of_model(model)
    _check_spaces(model, card)
    size = model.observation_space.shape[0]
    if observations.shape[1:] != (size,) or len(observations) < FEWEST or observations.dtype != np.float32:
        raise BundleError(
            f"observations of shape {observations.shape} and type {observations.dtype}: give {FEWEST} or more of "
            f"{size} numbers each, float32"
        )
    _compare(model, network, observations)
    return save(out, name, card, network)


def network_of_model(model: Any) -> Network:
    """The model's network, observation (n, size) to logits (n, moves); else BundleError."""
    layers = _layers(model)
    dense, between = layers[::2], layers[1::2]
    for layer in dense:
        if not isinstance(layer, nn.Linear):
            raise _unknown(layer)
    names = {_activation(layer) for layer in between}
    if len(names) > 1 or len(dense) != len(between) + 1:
        raise BundleError(f"the network is not dense layers with one activation between them: {sorted(names)}")
    network = Network(
        tuple(_array(layer.weight) for layer in dense),
        tuple(_bias(layer) for layer in dense),
        names.pop() if names else "tanh",
    )
    try:
        as_file(network)
    except NetworkError as error:
        raise BundleError(f"the network {error}") from error
    return network


def weights_of(model: Any) -> bytes:
    """The bytes of weights.npz of a model; else BundleError."""
    return as_file(network_of_model(model))


def _activation(layer: Any) -> str:
    if type(layer) not in _ACTIVATIONS:
        raise _unknown(layer)
    if type(layer) in _OWN_CONSTANTS:
        constant, usual = _OWN_CONSTANTS[type(layer)]
        if getattr(layer, constant) != usual:
            raise BundleError(f"a {type(layer).__name__} with {constant}={getattr(layer, constant)}; {usual} is taken")
    return _ACTIVATIONS[type(layer)]


def _unknown(layer: Any) -> BundleError:
    known = ", ".join(one.__name__ for one in _ACTIVATIONS)
    return BundleError(f"the network has a layer {type(layer).__name__}; a bundle takes Linear and {known}")


def _layers(model: Any) -> Sequence[Any]:
    """Its dense layers and activations in order, the last one with an output for each move."""
    policy = model.policy
    if isinstance(model, PPO | MaskablePPO):
        extractor, layers = policy.pi_features_extractor, [*policy.mlp_extractor.policy_net, policy.action_net]
    elif isinstance(model, QRDQN):
        extractor, layers = policy.quantile_net.features_extractor, list(policy.quantile_net.quantile_net)
        layers[-1] = _mean(layers[-1], policy.quantile_net.n_quantiles)
    elif isinstance(model, DQN):
        extractor, layers = policy.q_net.features_extractor, list(policy.q_net.q_net)
    else:
        raise BundleError(f"a {type(model).__name__} cannot be exported; {', '.join(ALGORITHMS)} can")
    if not isinstance(extractor, FlattenExtractor):
        raise BundleError(f"a features extractor {type(extractor).__name__} cannot be exported; FlattenExtractor can")
    return layers


def _mean(last: nn.Linear, quantiles: int) -> nn.Linear:
    """The layer whose outputs are the means over the quantiles of the given one's."""
    moves = last.out_features // quantiles
    folded = nn.Linear(last.in_features, moves, device="meta").to_empty(device="cpu")  # no weights are drawn
    with torch.no_grad():
        folded.weight.copy_(last.weight.reshape(quantiles, -1, last.in_features).mean(dim=0))
        folded.bias.copy_(last.bias.reshape(quantiles, -1).mean(dim=0))
    return folded


def _bias(layer: nn.Linear) -> Array:
    return np.zeros(layer.out_features, np.float32) if layer.bias is None else _array(layer.bias)


def _array(weights: torch.Tensor) -> Array:
    return weights.detach().cpu().numpy().astype(np.float32)


def _check_spaces(model: Any, card: CardParts) -> None:
    seen, answers = model.observation_space.shape, getattr(model.action_space, "n", None)
    wanted = (ObservationTable.here(card.lags).size,)
    if seen != wanted:
        raise BundleError(f"the model sees {seen}, and lags {list(card.lags)} give {wanted}: it was trained on others")
    if answers != len(MOVES):
        raise BundleError(f"the model answers in {model.action_space}; a bundle in Discrete({len(MOVES)})")


def _compare(model: Any, network: Network, observations: Array) -> None:
    """The network against the model, which computes on its own ways."""
    answers = network.logits(observations)
    model.policy.set_training_mode(False)
    with torch.no_grad():
        expected = _array(tensor_logits(model, torch.as_tensor(observations, device=model.policy.device)))
    if not np.isfinite(expected).all():
        raise BundleError("the model's own answers are not finite: its training diverged")
    apart = float(np.abs(answers - expected).max())
    if not apart <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise BundleError(f"the network's logits differ from the model's by up to {apart:.3g}; nothing was written")
    chosen, _ = model.predict(observations, deterministic=True)
    # Between two moves that both take for equally good rounding decides, of which `predict` has more: a softmax.
    worse = answers.max(axis=1) - answers[np.arange(len(answers)), chosen]
    if differing := int((worse > TOLERANCE * max(1.0, float(np.abs(expected).max()))).sum()):
        raise BundleError(
            f"the network chooses otherwise than the model on {differing} of {len(observations)} observations; "
            "nothing was written"
        )
