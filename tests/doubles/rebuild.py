"""From a bundle's network back to a model of Stable-Baselines3, to compare what it costs to ask the one or the other.

The actor gets the network's weights. The critic, of the same size, is random: a bundle has none.
"""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3 import PPO
from torch import nn

from rlctl.agents.served.bundle import Bundle
from rlctl.agents.training.algorithms import ACTIVATIONS
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.envs.sim.vector_env import SimHostVectorEnv


def as_ppo(bundle: Bundle) -> PPO:
    """A PPO whose most likely move is the bundle's best one."""
    network = bundle.network
    units = list(network.layers[1:-1])
    kwargs = {"net_arch": {"pi": units, "vf": units}, "activation_fn": ACTIVATIONS[network.activation]}
    env = SimVecEnv(SimHostVectorEnv(1, lags=bundle.card.lags))
    model = PPO("MlpPolicy", env, n_steps=2, batch_size=2, policy_kwargs=kwargs, device="cpu")
    policy: Any = model.policy
    actor = [one for one in policy.mlp_extractor.policy_net if isinstance(one, nn.Linear)]
    with torch.no_grad():
        for layer, weight, bias in zip([*actor, policy.action_net], network.weights, network.biases, strict=True):
            layer.weight.copy_(torch.from_numpy(weight.copy()))
            layer.bias.copy_(torch.from_numpy(bias.copy()))
    return model
