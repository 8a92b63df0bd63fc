"""The `fallback` section: who decides when a learned policy does not, and how much trouble it may be."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from rlctl.agents.served.standing import Budgets
from rlctl.config.fields import Described, Name


class FallbackSection(Described):
    """Behind a learned policy: a heuristic, and behind that the safe allocation. Other policies need no section.

    It decides when a policy that runs fails. A bundle that is refused at the start ends that start, unless the file
    has this section: then the heuristic decides in its place.

    The default heuristic is that of `policy`: one control law to know. `rlctl bench` compares it with the others; it
    holds about as many windows as Heracles, with more BE.

    Attributes:
        name: The heuristic, from `rlctl managers`.
        options: Its constructor options.
        answer_milliseconds: Time that the policy has for an answer; a quarter of the tick where that is less. A tick
            without a usable answer in time is the heuristic's.
        failure_percent: Share of the ticks of `failure_window_seconds` that may be without a usable answer; with more
            the policy is demoted: the heuristic decides.
        failure_window_seconds: The window of `failure_percent`.
        override_percent: Share of the ticks of `window_seconds` that the shield may override; with more the policy is
            demoted.
        drift_percent: Share of the ticks of `window_seconds` that may be unlike the policy's training; with more it is
            demoted, until that is over.
        window_seconds: The window of `override_percent` and `drift_percent`.
        hold_seconds: How long it stays demoted the first time; twice as long each time it must be demoted again within
            `failure_window_seconds` of its return.
        most_hold_seconds: The longest that it stays demoted.
    """

    name: Name = "prm-hybrid-tuned"
    options: dict[str, Any] = Field(default_factory=dict)
    answer_milliseconds: float = Field(default=100.0, ge=1.0, le=10_000.0)
    failure_percent: float = Field(default=1.0, ge=0.0, le=100.0)
    failure_window_seconds: float = Field(default=600.0, ge=1.0, le=86_400.0)
    override_percent: float = Field(default=50.0, ge=0.0, le=100.0)
    drift_percent: float = Field(default=50.0, ge=0.0, le=100.0)
    window_seconds: float = Field(default=60.0, ge=1.0, le=86_400.0)
    hold_seconds: float = Field(default=60.0, ge=1.0, le=86_400.0)
    most_hold_seconds: float = Field(default=3600.0, ge=1.0, le=864_000.0)

    @model_validator(mode="after")
    def _grows(self) -> FallbackSection:
        if self.most_hold_seconds < self.hold_seconds:
            raise ValueError(f"most_hold_seconds is less than hold_seconds, {self.hold_seconds:g}")
        return self

    @property
    def budgets(self) -> Budgets:
        """The same in seconds and ratios."""
        return Budgets(
            answer_seconds=self.answer_milliseconds / 1e3,
            failure_ratio=self.failure_percent / 1e2,
            failure_window_seconds=self.failure_window_seconds,
            override_ratio=self.override_percent / 1e2,
            drift_ratio=self.drift_percent / 1e2,
            window_seconds=self.window_seconds,
            hold_seconds=self.hold_seconds,
            most_hold_seconds=self.most_hold_seconds,
        )
