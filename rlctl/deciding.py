"""From the names in a configuration to the policy and the profile that decide."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from rlctl.agents.policy import Policy
from rlctl.config import PolicySection
from rlctl.envs.errors import ConfigError, PolicyError

__all__ = ["NEEDS_SIMULATOR", "build_policy", "check_name"]

NEEDS_SIMULATOR = frozenset({"oracle", "oracle-model"})
"""Bounds that look into the future of a simulated host; there is nothing to build them from on a live one."""


def build_policy(section: PolicySection) -> Policy:
    """The policy that a configuration names.

    Raises:
        ConfigError: An unknown name, options that the manager does not take, or a model that cannot be read.
    """
    from rlctl.agents import catalogue

    check_name(section.name, catalogue.NAMES)
    try:
        return catalogue.build(section.name, model=_model(section), **section.options)
    except TypeError as error:
        raise PolicyError(f"policy '{section.name}' does not take these options: {error}") from error


def check_name(name: str, known: Iterable[str]) -> None:
    """Accept a manager's name.

    Raises:
        ConfigError: It is unknown here; suggests the closest.
    """
    names = tuple(known)
    if name in NEEDS_SIMULATOR:
        raise ConfigError(f"policy '{name}' exists in the simulator only; see `rlctl managers`")
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "see `rlctl managers`"
        raise ConfigError(f"unknown policy '{name}'; {hint}")


def _model(section: PolicySection) -> object:
    if section.threshold_model is None:
        return None
    from rlctl.agents.prm_model import PrmModel

    return PrmModel.load(section.threshold_model)
