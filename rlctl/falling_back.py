"""From the fallback section of a configuration to the chain behind a learned policy."""

from __future__ import annotations

from pathlib import Path

from rlctl.agents.catalogue import NAMES
from rlctl.agents.drift import Drift
from rlctl.agents.fallback import Fallback
from rlctl.agents.learned import LearnedPolicy
from rlctl.agents.policy import Policy
from rlctl.agents.refused import Refused
from rlctl.config.fallback import FallbackSection
from rlctl.config.serve import PolicySection
from rlctl.deciding import build_policy
from rlctl.envs.errors import PolicyError
from rlctl.safety.shield import Shield

__all__ = ["untrained_shield", "with_fallback"]


def with_fallback(
    policy: Policy, section: FallbackSection, tick_seconds: float, threshold_model: Path | None = None
) -> Policy:
    """A learned policy with its chain behind it; a heuristic as it is, behind which there is the safe allocation.

    Args:
        policy: As configured.
        section: Who decides otherwise, and the budgets.
        tick_seconds: Control period.
        threshold_model: PRM's model, for a heuristic that uses one.

    Raises:
        ConfigError: The heuristic is none, or does not take its options, or its model cannot be read.
        PermissionMissing: The model may not be read.
    """
    if section.name not in NAMES:
        raise PolicyError(f"'{section.name}' is no heuristic to fall back to; there are {', '.join(NAMES)}")
    # Built in any case: a mistake in it is to be found before the day that it is needed.
    heuristic = build_policy(PolicySection(name=section.name, options=section.options, threshold_model=threshold_model))
    if isinstance(policy, Refused):
        return Fallback(policy, heuristic, tick_seconds, section.budgets)
    if not isinstance(policy, LearnedPolicy):
        return policy
    return Fallback(policy, heuristic, tick_seconds, section.budgets, Drift(policy.bundle.card))


def untrained_shield(policy: Policy, shield: Shield) -> str:
    """That a learned policy never met this shield in training, in one line; empty where it did or nothing is known.

    No reason to refuse it: the shield's word is the last one, whoever it was that the policy learned with.
    """
    inner = policy.policy if isinstance(policy, Fallback) else policy
    plants = inner.bundle.card.plants if isinstance(inner, LearnedPolicy) else ()
    met = {plant.shield_digest: f"{plant.shield} ({plant.shield_digest})" for plant in plants if plant.shield_digest}
    if not met or shield.digest in met:
        return ""
    now = f"{shield.profile_name} ({shield.digest})"
    return f"policy {policy.name} was trained with shield {', '.join(met.values())}, not with {now}"
