"""PPO of Ray RLlib on simulated hosts: `python docs/examples/rllib_ppo.py --iterations 20`.

It needs the extra `distributed`. RLlib pins an older Gymnasium in its own extra, so rlctl's names what else it needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import ray
from ray.rllib.algorithms.ppo import PPOConfig

import rlctl.envs  # noqa: F401 - makes rlctl/SimHost-v0 known


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train; returns the mean return of the episodes that ended by each iteration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=20, metavar="N")
    parser.add_argument("--hosts", type=int, default=16, metavar="N", help="simulated in this process (default: 16)")
    parser.add_argument("--steps", type=int, default=4800, metavar="N", help="of all hosts per iteration (4800)")
    asked = parser.parse_args(arguments)
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 << 20)
    config = (
        PPOConfig()
        .environment("rlctl/SimHost-v0", env_config={"profile": "two-core-nginx"})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=asked.hosts)
        .training(train_batch_size_per_learner=asked.steps, minibatch_size=asked.steps // 4, num_epochs=4)
        .training(gamma=0.9, lambda_=0.9, lr=1e-3)
        .rl_module(model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"})
        .debugging(seed=0)
    )
    algorithm, returns = config.build_algo(), []
    for iteration in range(asked.iterations):
        runners = algorithm.train()["env_runners"]
        returns.append(float(runners.get("episode_return_mean", float("nan"))))
        print(f"{(iteration + 1) * asked.steps} steps: return {returns[-1]:.1f}")
    algorithm.stop()
    ray.shutdown()
    return returns


if __name__ == "__main__":
    main()
