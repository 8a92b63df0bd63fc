"""The card of a bundle: what a learned policy sees, what it may answer, where it was trained, and how it scored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from rlctl.envs.actions import MOVES, MOVES_VERSION
from rlctl.envs.experience import CALM, MEMORY
from rlctl.envs.features import FEATURES, FRAME_SIZE, Scale
from rlctl.envs.observation import TAIL_SIZE, VERSION, checked_lags
from rlctl.envs.workload import Weight

T = TypeVar("T")
Tuple = Annotated[tuple[T, ...], Field(strict=False)]  # JSON knows lists only
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class FeatureRow(_Strict):
    """One row of the normaliser, as in `rlctl.envs.features.Feature`."""

    name: str
    unit: str
    low: float
    high: float
    scale: Annotated[Scale, Field(strict=False)]
    optional: bool


class ObservationTable(_Strict):
    """What the policy observes.

    Attributes:
        version: `rlctl.envs.observation.VERSION` at the time of training.
        lags: Ticks back whose frames the vector holds, oldest first.
        features: The normaliser, row by row.
        experience: What is told of the experience, after the history.
        size: Length of the vector.
    """

    version: int
    lags: Tuple[Annotated[int, Field(ge=0)]]
    features: Tuple[FeatureRow]
    experience: Tuple[str] = ()
    size: int = Field(ge=1)

    @classmethod
    def here(cls, lags: Sequence[int]) -> ObservationTable:
        """The table of this rlctl; ConfigError: lags that do not descend to 0."""
        rows = tuple(FeatureRow.model_validate(one, from_attributes=True) for one in FEATURES)
        size = FRAME_SIZE * len(checked_lags(lags)) + TAIL_SIZE
        return cls(version=VERSION, lags=tuple(lags), features=rows, experience=(*MEMORY, *CALM), size=size)


class MoveRow(_Strict):
    """One row of the action table, as in `rlctl.envs.actions.Move`; the table's version stands for how far it rises."""

    name: str
    quota_ratio: float | None
    cpuset_cpus: int
    frozen: bool | None


class ActionTable(_Strict):
    """What the policy may answer: the index of its largest logit is the index in `moves`."""

    version: int
    moves: Tuple[MoveRow]

    @classmethod
    def here(cls) -> ActionTable:
        """The table of this rlctl."""
        rows = tuple(MoveRow.model_validate(one, from_attributes=True) for one in MOVES)
        return cls(version=MOVES_VERSION, moves=rows)


class TrainedOn(_Strict):
    """One kind of host that the policy was trained on.

    Attributes:
        profile, digest: Name and digest of the simulated host's profile.
        ranges: Properties that were drawn anew for each host, with their ranges.
        shield, shield_digest: Name and digest of the safety profile; None for training without a shield.
        absent: Names of sensors that the host lacked.
        work: Worth of BE's work in the reward, as a share of what a violation costs.
        hosts: Number of the parallel hosts that were of this kind.
    """

    profile: str
    digest: str
    ranges: dict[str, JsonValue] = Field(default_factory=dict)
    weight: Annotated[Weight, Field(strict=False)]
    shield: str | None = None
    shield_digest: str | None = None
    absent: Tuple[str] = ()
    work: float = Field(gt=0.0, lt=1.0)
    hosts: int = Field(ge=1)


class SearchOrigin(_Strict):
    """The search for hyperparameters that the run is from.

    Attributes:
        space: sha256 over the space that was searched.
        trials: Number of trials.
        seed: Seed of the first trial; each other had the next.
        trial: Name of this run's trial.
        place: Rank of this run among the trials, 1 for the winner.
    """

    space: Sha256
    trials: int = Field(ge=1)
    seed: int
    trial: str
    place: int = Field(ge=1)


class Training(_Strict):
    """The run that trained the policy.

    Attributes:
        hyperparameters: Those of the algorithm, by name.
        total_timesteps: Number of control periods that it learned from.
        wall_seconds: Time that the training took.
        seed: Seed of the learner.
        code: Commit or version of rlctl.
        training_id: sha256 over the configuration of the run.
        members: Where several runs were merged, the sha256 of each policy; then timesteps and seconds are sums.
        search: The search that the run won; None for one that was not searched.
    """

    hyperparameters: dict[str, JsonValue] = Field(default_factory=dict)
    total_timesteps: int = Field(ge=0)
    wall_seconds: float = Field(ge=0.0)
    seed: int
    code: str
    training_id: Sha256
    members: Tuple[Sha256] = ()
    search: SearchOrigin | None = None


class ScoreEstimate(_Strict):
    """A mean over seeds with its 95 % interval."""

    mean: float
    ci95: Annotated[tuple[float, float], Field(strict=False)]


class CardScore(_Strict):
    """Its metrics on one scenario under one shield, as `rlctl bench` computes them."""

    qos_guarantee_percent: ScoreEstimate
    be_throughput_percent: ScoreEstimate
    shield_override_percent: ScoreEstimate
    seeds: int = Field(ge=1)


class NetworkTable(_Strict):
    """The network in weights.npz.

    Attributes:
        layers: Numbers of inputs, hidden units and outputs in order.
        activation: Function between the layers, one of `rlctl.agents.served.network.ACTIVATIONS`.
    """

    layers: Tuple[int]
    activation: str


class CardParts(_Strict):
    """What a training run knows of its policy; `bundle_writer.save` adds what follows from the files.

    Attributes:
        algorithm: Name of the learner, such as PPO or MaskablePPO.
        tick_seconds: Control period that it was trained at.
        lags: Ticks back that it observes, oldest first.
        plants: Kinds of hosts that it was trained on.
        scores: For each scenario the score under each shield; None before it was evaluated.
    """

    algorithm: str
    tick_seconds: float = Field(gt=0.0)
    lags: Tuple[int]
    plants: Tuple[TrainedOn] = ()
    training: Training
    scores: dict[str, dict[str, CardScore]] | None = None


class Card(CardParts):
    """The contents of a bundle's card.json.

    Attributes:
        schema_version: `schema` in the file.
        name: Name of the policy, such as ppo.
        created: Day of the export.
        rlctl_version: Version of rlctl that exported it.
        observation, action: Meaning of the network's inputs and outputs.
        masked: It was trained to choose among the moves that the shield lets through.
        policy_sha256: Hash of weights.npz.
        network: Shape of the network in it.
    """

    schema_version: Literal[2] = Field(alias="schema")
    name: Name
    created: Annotated[date, Field(strict=False)]
    rlctl_version: str
    observation: ObservationTable
    action: ActionTable
    masked: Literal[True]
    policy_sha256: Sha256
    network: NetworkTable

    @model_validator(mode="after")
    def _one_history(self) -> Card:
        if self.lags != self.observation.lags:
            raise ValueError(f"lags {list(self.lags)} are not those of the observation, {list(self.observation.lags)}")
        return self
