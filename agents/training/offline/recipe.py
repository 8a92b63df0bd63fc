"""Hyperparameters of learning from a dataset, as YAML in the shape of all recipes (`rlctl.agents.training.recipe`).

recipe = recipe_file(OFFLINE["cql"], "cql", None)     # configs/training/cql.yaml
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from rlctl.agents.training.recipe import Count, NetworkRecipe, Positive, QuantileNetwork, Schedule
from rlctl.envs.yaml_edge import Strict

Share = Annotated[float, Field(ge=0.0, lt=1.0)]


class OfflineRecipe(Strict):
    """What both algorithms have.

    Attributes:
        n_updates: Steps of the optimiser in all.
        rounds: Between them the policy is judged so many times, and the best one is kept.
        learning_rate: A number, or `lin_` and one, which falls to a twentieth of it.
        batch_size: Transitions of an update.
        gamma: Discount; also of the off-policy value by which policies are judged.
        work: Worth of BE's work by a violation, in place of `rlctl.envs.reward.WORK`; none takes what each of the
            dataset's sources says, which is WORK for real hosts.
        held_out: Share of the episodes that is judged on and not learned from.
        max_grad_norm: Gradients are cut to it.
    """

    n_updates: Count
    rounds: Count = 8
    learning_rate: Schedule
    batch_size: Count
    gamma: Share = 0.9
    work: Positive | None = None
    held_out: Share = 0.1
    max_grad_norm: Positive = 10.0


class Cloning(OfflineRecipe):
    """Behaviour cloning of one policy."""

    policy_kwargs: NetworkRecipe = NetworkRecipe()


class Conservative(OfflineRecipe):
    """Conservative Q-learning, CQL(H) of Kumar et al. (NeurIPS 2020), on a quantile network.

    Attributes:
        target_update_interval: Updates between two target networks.
        alpha: Weight of the conservative term.
        temperature: Of its soft maximum, in units of the reward: differences of values that are less hardly count.
    """

    policy_kwargs: QuantileNetwork = QuantileNetwork()
    target_update_interval: Count
    alpha: float = Field(ge=0.0)
    temperature: Positive


OFFLINE: Mapping[str, type[OfflineRecipe]] = MappingProxyType({"bc": Cloning, "cql": Conservative})
"""What `--algo` may be with `--offline`, and what its file may say."""
