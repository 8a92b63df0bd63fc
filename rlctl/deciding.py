"""From the policy section of a configuration to the policy that decides."""

from __future__ import annotations

from rlctl.agents import catalogue
from rlctl.agents.policy import Policy
from rlctl.agents.prm_model import PrmModel
from rlctl.config.serve import PolicySection
from rlctl.envs.errors import PolicyError

__all__ = ["build_policy"]


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
