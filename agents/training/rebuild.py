"""From a bundle's network back to a model of Stable-Baselines3, to compare what it costs to ask the one or the other.

The actor gets the network's weights. The critic, of the same size, is random: a bundle has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from stable_baselines3 import PPO
from torch import nn

from rlctl.agents.bundle import Bundle
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.envs.errors import BundleError
from rlctl.envs.sim.vector_env import SimHostVectorEnv

__all__ = ["as_ppo"]

ACTIVATIONS: Mapping[str, type[nn.Module]] = MappingProxyType({"Tanh": nn.Tanh, "Relu": nn.ReLU, "Elu": nn.ELU})


def as_ppo(bundle: Bundle) -> PPO:
    """A PPO whose most likely move is the bundle's best one.

    Args:
        bundle: Of dense layers with one kind of activation between them, as `rlctl train` exports it.

    Raises:
        BundleError: Its network is of another kind.
    """
    graph = onnx.load_model_from_string(bundle.policy).graph
    kinds = [node.op_type for node in graph.node]
    activations = set(kinds[1::2])
    if set(kinds[::2]) != {"Gemm"} or len(activations) > 1 or not activations <= set(ACTIVATIONS):
        raise BundleError(f"{bundle.card.name}: {' > '.join(kinds)} is no network that PPO has; give its MODEL.zip")
    arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    layers = [(arrays[node.input[1]], arrays[node.input[2]]) for node in graph.node[::2]]
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
