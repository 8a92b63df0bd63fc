"""From a bundle's network back to a model of Stable-Baselines3, to compare what it costs to ask the one or the other.

The actor gets the network's weights. The critic, of the same size, is random: a bundle has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from stable_baselines3 import PPO
from torch import nn

from rlctl.agents.served.bundle import Bundle
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.envs.errors import BundleError
from rlctl.envs.sim.vector_env import SimHostVectorEnv

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Weights, shape (outputs, inputs), and biases."""

ACTIVATIONS: Mapping[str, type[nn.Module]] = MappingProxyType({"Tanh": nn.Tanh, "Relu": nn.ReLU, "Elu": nn.ELU})


def as_ppo(bundle: Bundle) -> PPO:
    """A PPO whose most likely move is the bundle's best one.

    Args:
        bundle: Of dense layers with one kind of activation between them, as `rlctl train` exports it and `rlctl merge`
            puts several side by side.

    Raises:
        BundleError: Its network is of another kind.
    """
    graph = onnx.load_model_from_string(bundle.policy).graph
    kinds = [node.op_type for node in graph.node]
    activations = set(kinds) - {"Gemm", "Add"}
    members = _members(graph)
    if kinds != _expected(members, activations) or not activations <= set(ACTIVATIONS):
        raise BundleError(f"{bundle.card.name}: {' > '.join(kinds)} is no network that PPO has; give its MODEL.zip")
    layers = [_side_by_side(parts, place) for place, parts in enumerate(zip(*members, strict=True))]
    if len(members) > 1:
        layers[-1] = _summed([one[-1] for one in members], wide=len(layers) > 1)
    units = [len(bias) for _, bias in layers[:-1]]
    network = {
        "net_arch": {"pi": units, "vf": units},
        "activation_fn": ACTIVATIONS[activations.pop()] if activations else nn.Tanh,
    }
    env = SimVecEnv(SimHostVectorEnv(1, lags=bundle.card.lags))
    model = PPO("MlpPolicy", env, n_steps=2, batch_size=2, policy_kwargs=network, device="cpu")
    policy: Any = model.policy
    actor = [one for one in policy.mlp_extractor.policy_net if isinstance(one, nn.Linear)]
    with torch.no_grad():
        for layer, (weight, bias) in zip([*actor, policy.action_net], layers, strict=True):
            layer.weight.copy_(torch.from_numpy(weight.copy()))
            layer.bias.copy_(torch.from_numpy(bias.copy()))
    return model


def _members(graph: Any) -> list[list[Layer]]:
    """The layers of each network in the file; the first layer of each sees the observation."""
    arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    members: list[list[Layer]] = []
    for node in graph.node:
        if node.op_type == "Gemm":
            if node.input[0] == graph.input[0].name:
                members.append([])
            if members:
                members[-1].append((arrays[node.input[1]], arrays[node.input[2]]))
    return members


def _expected(members: list[list[Layer]], activations: set[str]) -> list[str]:
    """The operators of such a file: chains of equal length, then their sum."""
    if not members or len({len(one) for one in members}) > 1 or len(activations) > 1:
        return []
    if not activations and len(members[0]) > 1:
        return []
    chain = ["Gemm", *[*activations, "Gemm"] * (len(members[0]) - 1)]
    return chain * len(members) + ["Add"] * (len(members) - 1)


def _side_by_side(parts: tuple[Layer, ...], place: int) -> Layer:
    """One layer of all members: a block each, or the same input to each in the first."""
    weights, biases = zip(*parts, strict=True)
    if place == 0:
        return np.vstack(weights), np.hstack(biases)
    wide = np.zeros((sum(len(one) for one in weights), sum(one.shape[1] for one in weights)), np.float32)
    row = column = 0
    for one in weights:
        wide[row : row + len(one), column : column + one.shape[1]] = one
        row, column = row + len(one), column + one.shape[1]
    return wide, np.hstack(biases)


def _summed(last: list[Layer], *, wide: bool) -> Layer:
    """The last layers as one whose outputs are the sums of theirs."""
    weights = [weight for weight, _ in last]
    bias = np.sum([bias for _, bias in last], axis=0)
    return (np.hstack(weights) if wide else np.sum(weights, axis=0)), bias
