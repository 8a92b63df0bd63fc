"""The hosts that policies learn on, as data: kinds of simulated hosts, and how many of each.

hosts = load_hosts()                                     # configs/training/hosts.yaml, or a file
hosts = hosts.with_profiles({"nginx.yaml": load_profile("nginx.yaml")})   # one of one's own beside them
env = build(hosts, count=1152, seed=0, lags=(8, 2, 1, 0))              # a SimVecEnv; env.take_counts() by kind
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from rlctl.agents.served.learned import SENSORS
from rlctl.agents.training.lagrangian import Multiplier
from rlctl.envs.errors import ConfigError
from rlctl.envs.reward import WORK
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.sim.seeds import training
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import Strict, beside, configs_folder, load_yaml, validate
from rlctl.safety.profile import DEFAULT, Profile, load_profile
from rlctl.safety.vector_wrapper import ShieldedVectorEnv

if TYPE_CHECKING:
    from rlctl.agents.training.sb3_vec_env import SimVecEnv

OWN_SHARE = 1.0
"""Hosts of the user's own, by all others together."""

SEED_BITS, BLOCK_BITS = 20, 14
_READINGS = {"load": "load_ratio", **SENSORS}
"""Features that a kind of host may lack, with the reading that they are made of."""

VALIDATION = 1 << 40
"""First validation seed: a training seed, since what selects a policy has seen it, beyond those of all runs."""


class Kind(Strict):
    """One kind of host that policies learn on.

    Attributes:
        name: Shown in curves, tables and cards.
        profile: A host profile, by name or file.
        constants: Constants of the profile that are different here, the same on all hosts also where it has a range.
        ranges: From where each host or episode draws constants, beside the profile's own ranges.
        weight: BE's CPU weight on these hosts.
        share: Share of the hosts, by the shares of the other kinds.
        safety: The shield's profile, by name or file; none learns without a shield.
        absent: Optional features whose sensor these hosts lack.
        work: Worth of BE's work by a violation, the reward's `WORK`: where the same price makes policies too bold, as
            where sensors are late, or too shy.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    profile: str
    constants: dict[str, float] = Field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = Field(default_factory=dict)
    weight: Weight
    share: float = Field(gt=0.0)
    safety: str | None
    absent: tuple[str, ...] = ()
    work: float = Field(default=WORK, gt=0.0, lt=1.0)

    def host(self) -> HostProfile:
        """The profile with these constants and ranges; ConfigError where there is none such."""
        try:
            plain = load_host(self.profile).but(**self.constants)
            own = {name: ends for name, ends in plain.ranges.items() if name not in self.constants}
            data = plain.model_dump() | {"ranges": {**own, **self.ranges}}
            return validate(HostProfile, data, f"profile {plain.name}")
        except ConfigError as error:
            raise ConfigError(f"hosts {self.name}: {error}") from error

    def shield(self) -> Profile | None:
        """The safety profile, if any; ConfigError where there is none of this name."""
        return load_profile(self.safety) if self.safety else None


class Hosts(Strict):
    """A file of kinds.

    Attributes:
        episode_steps: Control periods after which an episode is cut off.
        priced: Each episode has a price of a violation of its own, which the policy sees.
        kinds: Kinds of hosts; in a file, one may be `like` an earlier one.
    """

    episode_steps: int = Field(300, ge=1)
    priced: bool = True
    kinds: tuple[Kind, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, data: Any) -> Any:
        return _complete_kinds(data)

    def with_profiles(self, profiles: Mapping[str, HostProfile]) -> Hosts:
        """With hosts of the user's own by their files, together as many as all others; equally many of each.

        BE has the least weight there, as `rlctl serve` gives it.

        Raises:
            ConfigError: A name that is taken, or that no kind can have.
        """
        kinds = list(self.kinds)
        for file, profile in profiles.items():
            if any(kind.name == profile.name for kind in kinds):
                taken = f"{profile.name}: there is a kind of this name among the hosts; rename the profile"
                raise ConfigError(taken, file)
            share = OWN_SHARE * sum(kind.share for kind in self.kinds) / len(profiles)
            own = {"weight": Weight.MINIMUM, "safety": DEFAULT, "share": share}
            kinds.append(validate(Kind, {"name": profile.name, "profile": file, **own}, file))
        return self.model_copy(update={"kinds": tuple(kinds)})


def _complete_kinds(data: Any) -> Any:
    """A file's kinds, each with what it takes from the earlier one that it is `like`.

    What is not even shaped like kinds stays as it is, for validation to refuse; ValueError for two of one name, and
    for a kind that is like none.
    """
    kinds = data.get("kinds") if isinstance(data, dict) else None
    if not isinstance(kinds, (list, tuple)) or not all(isinstance(kind, dict) for kind in kinds):
        return data
    made: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        name, own = str(kind.get("name")), {key: value for key, value in kind.items() if key != "like"}
        if name in made:
            raise ValueError(f"kinds: there are two {name!r}; give each its name")
        if "like" in kind:
            base = made.get(str(kind["like"]))
            if base is None:
                raise ValueError(f"kinds: {name} is like {kind['like']!r}, which is not among the kinds before it")
            said, ranges = own.get("constants"), base.get("ranges")
            if isinstance(said, dict) and isinstance(ranges, dict):  # or the range would hide what is said anew
                base = {**base, "ranges": {key: ends for key, ends in ranges.items() if key not in said}}
            both = [key for key in ("constants", "ranges") if isinstance(own.get(key, {}), dict)]
            own = {**base, **own, **{key: {**base.get(key, {}), **own.get(key, {})} for key in both}}
        made[name] = own
    return {**data, "kinds": list(made.values())}


def load_hosts(path: Path | None = None) -> Hosts:
    """The kinds that ship, or those of a file, beside which profiles are looked for, too; ConfigError says its line."""
    source = path or configs_folder("training") / "hosts.yaml"
    data, lines = load_yaml(source)
    hosts = validate(Hosts, data, source, lines)
    folder = source.absolute().parent  # a worker of Ray is elsewhere
    kinds = tuple(
        kind.model_copy(update={key: beside(folder, getattr(kind, key)) for key in ("profile", "safety")})
        for kind in hosts.kinds
    )
    for kind in kinds:
        kind.host(), kind.shield()
    return hosts.model_copy(update={"kinds": kinds})


def spread(count: int, shares: Sequence[float]) -> list[int]:
    """Hosts of each kind by positive shares, one at least; where they do not suffice, one for the largest shares."""
    order = sorted(range(len(shares)), key=lambda place: -shares[place])
    got = [0] * len(shares)
    for place in order[:count]:
        got[place] = 1
    total = sum(shares)
    while sum(got) < count:
        lacking = [count * share / total - has for share, has in zip(shares, got, strict=True)]
        got[lacking.index(max(lacking))] += 1
    return got


def present(hosts: Hosts, count: int) -> list[tuple[Kind, int]]:
    """The kinds and how many hosts each has among so many, in the order of the groups; those with none left out."""
    numbers = spread(count, [kind.share for kind in hosts.kinds])
    return [(kind, number) for kind, number in zip(hosts.kinds, numbers, strict=True) if number]


def dealt(hosts: Hosts, each: int, parts: int) -> list[list[tuple[Kind, int]]]:
    """For each of some parts of so many hosts the kinds that it has, as `present`.

    Together the parts have all kinds by their shares, also where one of them has fewer hosts than there are kinds.
    """
    kinds = [kind for kind, number in present(hosts, each * parts) for _ in range(number)]
    dealt = []
    for place in range(parts):
        own = kinds[place::parts]
        dealt.append([(kind, own.count(kind)) for kind in hosts.kinds if kind in own])
    return dealt


def readings_without(absent: Collection[str]) -> dict[str, Missing]:
    """What stands in place of readings, by their names in Telemetry, on hosts that lack some features' sensors."""
    return {field: Missing(Why.NOT_SUPPORTED) for name, field in _READINGS.items() if name in absent}


def build(
    hosts: Hosts,
    count: int,
    seed: int,
    lags: Sequence[int],
    *,
    block: int = 0,
    multiplier: Multiplier | None = None,
) -> SimVecEnv:
    """All hosts as one environment of Stable-Baselines3, seeded; rewards are of what happened, not of what was sensed.

    Args:
        count: Number of hosts in all; kinds that get none are left out.
        block: Number of the run's block of seeds: a resumed run takes the next one.
        multiplier: As of `HostGroups`.

    Raises:
        ConfigError: A profile is wrong, or a seed or count too large.
    """
    from rlctl.agents.training.sb3_vec_env import SimVecEnv

    groups = [HostShare.of(kind, number, hosts) for kind, number in present(hosts, count)]
    names = [one.kind.name for one in groups]
    env = SimVecEnv(*(one.simulated(lags) for one in groups), names=names, multiplier=multiplier)
    env.seed(first_seed(seed, count, block))
    return env


@dataclass(frozen=True, slots=True)
class HostShare:
    """Hosts of one kind as they are simulated, with no file left to read: it can be sent to another machine."""

    kind: Kind
    count: int
    episode_steps: int
    priced: bool
    profile: HostProfile
    shield: Profile | None

    @classmethod
    def of(cls, kind: Kind, count: int, hosts: Hosts) -> HostShare:
        """So many hosts of a kind among others; ConfigError where its profile is wrong."""
        return cls(kind, count, hosts.episode_steps, hosts.priced, kind.host(), kind.shield())

    def simulated(self, lags: Sequence[int]) -> SimHostVectorEnv:
        """The hosts as an environment; ConfigError where lags do not descend to 0."""
        options: dict[str, Any] = {
            "max_episode_steps": self.episode_steps,
            "weight": self.kind.weight,
            "absent": self.kind.absent,
            "lags": lags,
            "true_rewards": True,
            "work": self.kind.work,
            "priced": self.priced,
        }
        if self.shield is None:
            return SimHostVectorEnv(self.count, self.profile, **options)
        return ShieldedVectorEnv(self.count, self.profile, safety=self.shield, **options)


def first_seed(seed: int, count: int, block: int = 0) -> int:
    """The seed of a run's first host, which no other run or block has; ConfigError for numbers without room."""
    if not 0 <= seed < 1 << SEED_BITS:
        raise ConfigError(f"seed {seed}: give 0 to {(1 << SEED_BITS) - 1}")
    if not 1 <= count <= 1 << BLOCK_BITS:
        raise ConfigError(f"{count} hosts: give 1 to {1 << BLOCK_BITS}")
    blocks = 1 << (SEED_BITS - BLOCK_BITS)
    return training((seed << SEED_BITS) + (block % blocks << BLOCK_BITS))


def validation_seed(number: int) -> int:
    """A seed on which policies are compared while they learn: a training seed that no run learns on."""
    return training(VALIDATION + number)
