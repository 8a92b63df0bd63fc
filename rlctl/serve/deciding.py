"""Who decides: from a configuration to its policy, the chain behind a learned one, and the shield's constants."""

from __future__ import annotations

from pathlib import Path

from rlctl.agents import catalogue
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.policy import Policy
from rlctl.agents.served.fallback import Fallback
from rlctl.config.fallback import FallbackSection
from rlctl.config.serve import PolicySection, ServeConfig, located
from rlctl.envs.errors import PolicyError
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.shield import Shield

__all__ = ["build_policy", "fallback_of", "policy_of", "profile_of", "untrained_shield", "with_fallback"]


def policy_of(config: ServeConfig, path: Path) -> Policy:
    """The policy that a configuration names.

    Raises:
        ConfigError: It cannot be; with file, line and key.
        PermissionMissing: Its model may not be read.
    """
    with located(path, "policy", "options" if config.policy.name in catalogue.NAMES else "name"):
        return build_policy(config.policy)


def fallback_of(config: ServeConfig, policy: Policy, path: Path, tick_seconds: float) -> Policy:
    """The policy with the configured chain behind it, where it needs one.

    Raises:
        ConfigError: The heuristic cannot be; with file, line and key.
        PermissionMissing: Its model may not be read.
    """
    with located(path, "fallback"):
        return with_fallback(policy, config.fallback, tick_seconds, config.policy.threshold_model)


def profile_of(config: ServeConfig, path: Path) -> Profile:
    """The shield's constants that a configuration names.

    Raises:
        ConfigError: They cannot be; with file and line.
        PermissionMissing: They may not be read.
    """
    with located(path, "shield"):
        return load_profile(config.shield)


def build_policy(section: PolicySection) -> Policy:
    """The policy that a configuration names.

    Raises:
        ConfigError: An unknown name or option, a value that cannot be, or a model that cannot be read.
        PermissionMissing: The model may not be read.
    """
    if section.name in catalogue.BOUNDS:
        raise PolicyError(f"policy '{section.name}' exists in the simulator only; see `rlctl managers`")
    if taken := catalogue.NOT_OPTIONS & section.options.keys():
        raise PolicyError(f"policy.options: '{min(taken)}' is no option of a manager")
    model = PrmModel.load(section.threshold_model) if section.threshold_model else None
    try:
        return catalogue.build(section.name, model=model, trusted=section.trusted_keys, **section.options)
    except TypeError as error:  # a value of another type than the option's
        raise PolicyError(f"policy '{section.name}' does not take its options: {error}") from error


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
    if section.name not in catalogue.NAMES:
        raise PolicyError(f"'{section.name}' is no heuristic to fall back to; there are {', '.join(catalogue.NAMES)}")
    # Built in any case: a mistake in it is to be found before the day that it is needed.
    heuristic = build_policy(PolicySection(name=section.name, options=section.options, threshold_model=threshold_model))
    return Fallback(policy, heuristic, tick_seconds, section.budgets) if policy.learned else policy


def untrained_shield(policy: Policy, shield: Shield) -> str:
    """That a learned policy never met this shield in training, in one line; empty where it did or nothing is known.

    No reason to refuse it: the shield's word is the last one, whoever it was that the policy learned with.
    """
    met = policy.trained_with
    if not met or shield.digest in met:
        return ""
    now = f"{shield.profile_name} ({shield.digest})"
    return f"policy {policy.name} was trained with shield {', '.join(met.values())}, not with {now}"
