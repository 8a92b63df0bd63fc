"""PPO in one file of plain torch, in the manner of CleanRL: `python docs/examples/cleanrl_ppo.py`.

It needs the extra `train`. Gymnasium's vector environment steps all hosts in arrays; one file has all that is learned.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import rlctl.envs  # noqa: F401 - makes rlctl/SimHost-v0 known

GAMMA, LAMBDA, CLIP, ENTROPY = 0.9, 0.9, 0.2, 0.003
STEPS, EPOCHS, BATCHES = 16, 4, 4


class Agent(nn.Module):
    """An actor and a critic, each with two layers of 64."""

    def __init__(self, seen: int, moves: int) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(seen, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
            for outputs in (moves, 1)
        )
        with torch.no_grad():
            self.actor[-1].weight.mul_(0.01)  # all moves are alike in the beginning

    def policy(self, observations: torch.Tensor) -> Categorical:
        return Categorical(logits=self.actor(observations))

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(observations).squeeze(-1)


def advantages_of(rewards: torch.Tensor, values: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Generalised advantage estimates, shape (steps, hosts).

    Args:
        values: Of the states before each step, and of those after the last: shape (steps + 1, hosts).
        ends: 1.0 where an episode was cut off with the step: the next row is another episode's.
    """
    advantages, following = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        goes_on = 1.0 - ends[step]
        error = rewards[step] + GAMMA * values[step + 1] * goes_on - values[step]
        following = advantages[step] = error + GAMMA * LAMBDA * goes_on * following
    return advantages


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train; returns the mean reward of a step by iteration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=128, metavar="N")
    parser.add_argument("--iterations", type=int, default=200, metavar="N", help=f"of {STEPS} steps of all hosts (200)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    asked = parser.parse_args(arguments)
    torch.manual_seed(asked.seed)
    torch.set_num_threads(1)  # a small network is no faster on more
    envs = gym.make_vec("rlctl/SimHost-v0", num_envs=asked.hosts, profile="two-core-nginx")
    size, moves = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    agent = Agent(size, moves)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2e-3, eps=1e-5)
    observation, means = torch.as_tensor(envs.reset(seed=asked.seed)[0]), []
    for iteration in range(asked.iterations):
        seen, taken, rewards, ends = torch.zeros(STEPS, asked.hosts, size), *torch.zeros(3, STEPS, asked.hosts)
        with torch.no_grad():
            for step in range(STEPS):
                seen[step], taken[step] = observation, agent.policy(observation).sample()
                after, reward, _, truncated, infos = envs.step(taken[step].long().numpy())
                rewards[step], ends[step] = torch.as_tensor(reward), torch.as_tensor(truncated)
                if truncated.any():  # cut off, not over: what the last state was worth belongs to its reward
                    finals = torch.as_tensor(np.stack(list(infos["final_obs"])))
                    rewards[step] += GAMMA * agent.value(finals) * ends[step]
                observation = torch.as_tensor(after)
            values = torch.cat([agent.value(seen), agent.value(observation)[None]])
            before = agent.policy(seen).log_prob(taken)
            advantages = advantages_of(rewards, values, ends)
        columns = (seen, taken, before, advantages, advantages + values[:-1])
        rows = [column.flatten(0, 1) for column in columns]
        for batch in (part for _ in range(EPOCHS) for part in torch.randperm(STEPS * asked.hosts).chunk(BATCHES)):
            states, moved, old, gain, worth = (row[batch] for row in rows)
            policy = agent.policy(states)
            ratio = (policy.log_prob(moved) - old).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            gained = torch.minimum(ratio * gain, ratio.clamp(1.0 - CLIP, 1.0 + CLIP) * gain).mean()
            missed = 0.5 * (agent.value(states) - worth).square().mean()
            optimizer.zero_grad()
            (missed - gained - ENTROPY * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        means.append(float(rewards.mean()))
        print(f"{(iteration + 1) * STEPS * asked.hosts} steps: reward {means[-1]:.3f} a step")
    envs.close()
    return means


if __name__ == "__main__":
    main()
