"""Who decides: from a serve configuration to its policy, the chain behind a learned one, the shield, BE's weight."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from rlctl.agents import catalogue
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.managers.table import read_table
from rlctl.agents.policy import Policy
from rlctl.agents.served.fallback import FallbackPolicy, UnavailablePolicy
from rlctl.agents.served.learned import plain_name
from rlctl.agents.user_policy import UserPolicy
from rlctl.config.sections import FallbackSection
from rlctl.config.serve import BeWeight, PolicySection, ServeConfig, load_config, locate_errors
from rlctl.envs.errors import BundleError, CgroupError, CgroupGone, ConfigError, PolicyError, in_one_line
from rlctl.envs.plant import Plant
from rlctl.envs.reins import Rein
from rlctl.envs.workload import Weight
from rlctl.loop.stopping import Request
from rlctl.safety.profile import Profile, load_shield

log = logging.getLogger("rlctl.serve")

SAME_LOAD_RATIO = 0.01
"""Maximum loads that differ by less are one that was rounded."""

EXCHANGED = ("policy", "fallback", "shield")
"""Sections that a reload exchanges; the others belong to what was opened at the start."""


@dataclass(frozen=True, slots=True)
class PolicySetup:
    """Who decides, with the chain behind it, and the constants of the shield that has the last word."""

    policy: Policy
    profile: Profile


class Configuration:
    """The configuration in effect and who decides by it: read at the start, and again when a signal asks for it.

    Args:
        policy: Another policy than the file's, as typed for --policy; None for the file's.
        strict: A bundle that is refused is an error even where the file has a fallback section.
        given: The configuration where there is no file.
    """

    def __init__(
        self, path: Path | None, policy: str | None = None, *, strict: bool = False, given: ServeConfig | None = None
    ) -> None:
        self._path, self._policy, self._strict, self._given = path, policy, strict, given
        self.reload = Request()
        self.config, self.deciders = self._read(None)

    def take_reload(self) -> PolicySetup | None:
        """Who decides from now on, if a reload was asked for and the file is right; a mistake in it changes nothing."""
        if not self.reload.is_set():
            return None
        self.reload.clear()
        try:
            config, deciders = self._read(self.config.tick_seconds)
        # A reload is all or nothing: the file is read and everything built before anything is exchanged.
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a new file, the loop goes on with the old one
            log.error("not reloaded, all stays as it was: %s", in_one_line(error))
            return None
        taken = {name: getattr(config, name) for name in EXCHANGED}
        fixed = [name for name in type(config).model_fields if name not in EXCHANGED]
        if changed := [name for name in fixed if getattr(config, name) != getattr(self.config, name)]:
            log.warning("%s: changed, which takes effect at the next start", ", ".join(changed))
        self.config = self.config.model_copy(update=taken)
        self.deciders = deciders
        return deciders

    def _read(self, tick_seconds: float | None) -> tuple[ServeConfig, PolicySetup]:
        """Read the file; `tick_seconds` is the control period of a service that runs, None at its start."""
        config = self._given or load_config(self._path or Path())
        if self._policy not in (None, config.policy.name):
            # Options belong to the manager they were written for; a model of the LC fits whoever reads it.
            typed = config.policy.model_copy(update={"name": self._policy, "options": {}})
            config = config.model_copy(update={"policy": typed})
            # --policy stands on no line of the file.
            policy = build_policy(typed)
        else:
            policy = self._policy_of(config, starting=tick_seconds is None)
        with locate_errors(self._path, "fallback"):
            period_seconds = tick_seconds or config.tick_seconds
            policy = with_fallback(policy, config.fallback, period_seconds, config.policy.threshold_model)
        with locate_errors(self._path, "lc"):
            check_table(config, config if tick_seconds is None else self.config)
        with locate_errors(self._path, "shield"):
            return config, PolicySetup(policy, load_shield(config.shield, strict=True))

    def _policy_of(self, config: ServeConfig, *, starting: bool) -> Policy:
        """The file's policy. Whoever wrote a fallback there wants BE controlled, whatever becomes of a bundle.

        At a reload the policy that decides already is better than a fallback.
        """
        try:
            with locate_errors(self._path, "policy", "options" if config.policy.name in catalogue.NAMES else "name"):
                return build_policy(config.policy)
        except BundleError as error:
            if not starting or self._strict or "fallback" not in config.model_fields_set:
                raise
            name, heuristic = config.policy.name, config.fallback.name
            log.error("policy %s is refused, %s decides in its place: %s", name, heuristic, error)
            return UnavailablePolicy(name, str(error))


def build_policy(section: PolicySection) -> Policy:
    """The policy that a configuration names; ConfigError for an unknown name or option or an unreadable model."""
    if section.name in catalogue.BOUNDS:
        raise PolicyError(f"policy '{section.name}' exists in the simulator only; see `rlctl managers`")
    if catalogue.is_variant(section.name):
        raise PolicyError(
            f"policy '{section.name}' is for benchmarks only; take '{plain_name(section.name)}', which "
            "slo.error_budget_percent makes bold or careful"
        )
    if taken := catalogue.NOT_OPTIONS & section.options.keys():
        raise PolicyError(f"policy.options: '{min(taken)}' is no option of a manager")
    model = PrmModel.load(section.threshold_model) if section.threshold_model else None
    try:
        return catalogue.build(section.name, model=model, trusted=section.trusted_keys, strict=True, **section.options)
    except TypeError as error:
        # An option's value has the wrong type.
        raise PolicyError(f"policy '{section.name}' does not take its options: {error}") from error


def check_table(config: ServeConfig, here: ServeConfig) -> None:
    """Whether this is the host that the manager `table` was swept on, where it decides or is fallen back to.

    Args:
        here: Whose LC and weight are in effect: those of a service that runs stay until its next start.

    Raises:
        ConfigError: Its levels are of a link or disk that moves none here, or of another load that counts as 1.0.
    """
    here_rps, weight = next(iter(here.lcs.values())).slo.max_load_rps, here.be.weight
    for file in (one.options.get("file") for one in (config.policy, config.fallback) if one.name == "table"):
        # The levels are in the options, which do not say of which host and load they are.
        if file is None:
            if isinstance(here_rps, str):
                raise ConfigError("the levels of `table` are shares of a maximum load: state it by slo.max_load_rps")
            continue
        swept = read_table(str(file))
        if swept.rein not in here.be.reins or (swept.rein is Rein.LINK and here.be.link == "none"):
            raise ConfigError(f"{file} was swept on the {swept.rein}, which moves no level here: see be.reins, be.link")
        if isinstance(here_rps, str):
            raise ConfigError(f"{file} was swept with {swept.max_load_rps:g} rps: say so by slo.max_load_rps")
        if abs(here_rps / swept.max_load_rps - 1.0) > SAME_LOAD_RATIO:
            there = f"{file} was swept with {swept.max_load_rps:g} rps"
            raise ConfigError(f"slo.max_load_rps is {here_rps:g}, {there}; set that, or sweep the host anew")
        if weight != {"equal": "leave"}.get(swept.be_weight, swept.be_weight):
            there = f"{file} was swept with BE's CPU weight {swept.be_weight}"
            log.warning("%s, be.weight is %s: its quotas are not those of this host", there, weight)


def with_fallback(
    policy: Policy, section: FallbackSection, tick_seconds: float, threshold_model: Path | None = None
) -> Policy:
    """A learned policy, or a manager of a user, with its chain behind it; one that ships as it is.

    Args:
        tick_seconds: Control period, of which an answer may take a quarter.
    """
    if section.name not in catalogue.NAMES:
        raise PolicyError(f"'{section.name}' is no heuristic to fall back to; there are {', '.join(catalogue.NAMES)}")
    # Built in any case: a mistake in it is to be found before the day that it is needed.
    heuristic = build_policy(PolicySection(name=section.name, options=section.options, threshold_model=threshold_model))
    doubted = policy.learned or isinstance(policy, UserPolicy)
    return FallbackPolicy(policy, heuristic, tick_seconds, section) if doubted else policy


log = logging.getLogger("rlctl.serve")


def weight_of(policy: Policy, wanted: BeWeight) -> Weight | None:
    """BE's weight by the configuration, or the policy's own where that is less; None: it is left as it is."""
    if wanted == "leave":
        return None
    # Idle is less than minimum, and the policy may ask for less than the file, never for more.
    return Weight.IDLE if Weight.IDLE in (wanted, policy.weight) else Weight.MINIMUM


def set_weight(plant: Plant, policy: Policy, wanted: BeWeight) -> None:
    """Give BE the weight of `weight_of`."""
    if (weight := weight_of(policy, wanted)) is None:
        log.info("BE keeps the CPU weight that it has (be.weight: leave)")
        if policy.weight is not Weight.EQUAL:
            log.warning("policy %s reckons with %s CPU weight for BE", policy.name, policy.weight)
        return
    log.debug("BE's CPU weight: %s, unless a group has less (be.weight: %s)", weight, wanted)
    try:
        plant.set_weight(weight)
    except CgroupError as error:
        # cpu.idle came with Linux 5.15: without it the minimum protects the LC nearly as well.
        if weight is Weight.MINIMUM or isinstance(error, CgroupGone):
            raise
        log.warning("%s: BE gets the minimum CPU weight instead", error)
        plant.set_weight(Weight.MINIMUM)
