"""From a model of Stable-Baselines3 to a bundle, verified before anything is written.

The layers are written as ONNX one by one and not traced: the same weights give the same bytes, and a layer that would
be something else than dense or an activation is told by its name. A quantile network's mean is folded into its last
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sb3_contrib import QRDQN, MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from rlctl import __version__
from rlctl.agents.served.bundle import save
from rlctl.agents.served.card import Card, CardParts, ObservationTable
from rlctl.agents.served.network import logits_of
from rlctl.agents.served.onnx_graph import GraphError, read_graph
from rlctl.agents.training.algorithms import tensor_logits
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError

OPSET, IR_VERSION = 17, 8
"""Old enough for any onnxruntime from 1.12 on."""

FEWEST = 1000
"""Observations that the network is compared on."""

TOLERANCE = 1e-4
"""Largest difference of a logit; moves that differ by less are equally good."""

ALGORITHMS = {one.__name__: one for one in (PPO, MaskablePPO, DQN, QRDQN)}
"""Learners whose models can be exported."""

Array = NDArray[np.float32]

_ACTIVATIONS: Mapping[type[nn.Module], tuple[str, Callable[[Any], dict[str, float]]]] = {
    nn.Tanh: ("Tanh", lambda _: {}),
    nn.ReLU: ("Relu", lambda _: {}),
    nn.Sigmoid: ("Sigmoid", lambda _: {}),
    nn.LeakyReLU: ("LeakyRelu", lambda layer: {"alpha": float(layer.negative_slope)}),
    nn.ELU: ("Elu", lambda layer: {"alpha": float(layer.alpha)}),
}


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
    policy = as_onnx(model)
    _check_spaces(model, card)
    size = model.observation_space.shape[0]
    if observations.shape[1:] != (size,) or len(observations) < FEWEST or observations.dtype != np.float32:
        raise BundleError(
            f"observations of shape {observations.shape} and type {observations.dtype}: give {FEWEST} or more of "
            f"{size} numbers each, float32"
        )
    _compare(model, policy, observations)
    return save(out, name, card, policy)


def as_onnx(model: Any) -> bytes:
    """The model's network as ONNX, observation (n, size) to logits (n, moves), float32; else BundleError."""
    layers = _layers(model)
    names = ["observation", *(f"layer{place}" for place in range(len(layers) - 1)), "logits"]
    nodes, weights = [], []
    for place, layer in enumerate(layers):
        node, own = _node(layer, place, *names[place : place + 2])
        nodes.append(node)
        weights += own
    ports = [
        helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["n", layers[0].in_features]),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", layers[-1].out_features]),
    ]
    data = to_file(helper.make_graph(nodes, "policy", ports[:1], ports[1:], weights))
    try:
        read_graph(data)
    except GraphError as error:
        raise BundleError(f"the network {error}") from error
    return data


def to_file(graph: Any) -> bytes:
    """An ONNX file of a graph, as every bundle has it."""
    made_by = {"producer_name": "rlctl", "producer_version": __version__, "ir_version": IR_VERSION}
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], **made_by)
    onnx.checker.check_model(network, full_check=True)
    data: bytes = network.SerializeToString()
    return data


def _node(layer: Any, place: int, taken: str, made: str) -> tuple[Any, list[Any]]:
    """A layer as ONNX has it, between two names, and its weights."""
    if isinstance(layer, nn.Linear):
        names = [f"weight{place}", f"bias{place}"]
        weights = [numpy_helper.from_array(_array(one), told) for one, told in zip(_of(layer), names, strict=True)]
        return helper.make_node("Gemm", [taken, *names], [made], transB=1), weights
    if type(layer) not in _ACTIVATIONS:
        raise BundleError(
            f"the network has a layer {type(layer).__name__}; a bundle takes Linear and "
            f"{', '.join(one.__name__ for one in _ACTIVATIONS)}"
        )
    operator, constants = _ACTIVATIONS[type(layer)]
    node = helper.make_node(operator, [taken], [made])
    node.attribute.extend(helper.make_attribute(key, value) for key, value in constants(layer).items())
    return node, []


def _layers(model: Any) -> list[Any]:
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


def _of(layer: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.weight, layer.bias if layer.bias is not None else torch.zeros(layer.out_features)


def _array(weights: torch.Tensor) -> Array:
    return weights.detach().cpu().numpy().astype(np.float32)


def _check_spaces(model: Any, card: CardParts) -> None:
    seen, answers = model.observation_space.shape, getattr(model.action_space, "n", None)
    wanted = (ObservationTable.here(card.lags).size,)
    if seen != wanted:
        raise BundleError(f"the model sees {seen}, and lags {list(card.lags)} give {wanted}: it was trained on others")
    if answers != len(MOVES):
        raise BundleError(f"the model answers in {model.action_space}; a bundle in Discrete({len(MOVES)})")


def _compare(model: Any, policy: bytes, observations: Array) -> None:
    """The network against the model, which computes on its own ways and not by the layers that were written."""
    found = logits_of(policy, observations)
    model.policy.set_training_mode(False)
    with torch.no_grad():
        expected = _array(tensor_logits(model, torch.as_tensor(observations, device=model.policy.device)))
    if not np.isfinite(expected).all():
        raise BundleError("the model's own answers are not finite: its training diverged")
    apart = float(np.abs(found - expected).max())
    if not apart <= TOLERANCE:
        raise BundleError(f"the network's logits differ from the model's by up to {apart:.3g}; nothing was written")
    chosen, _ = model.predict(observations, deterministic=True)
    # Between two moves that both take for equally good rounding decides, of which `predict` has more: a softmax.
    worse = found.max(axis=1) - found[np.arange(len(found)), chosen]
    if differing := int((worse > TOLERANCE).sum()):
        raise BundleError(
            f"the network chooses otherwise than the model on {differing} of {len(observations)} observations; "
            "nothing was written"
        )
