"""What was learned of this host, kept in the state directory, so that a restart does not forget it.

Policies learn what it bears, and its LCs' maximum loads are learned where nobody stated them. It frees nobody: what
policies know is a proposal, on which the shield rules, and what is known of a load can only make its maximum less.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from rlctl.config.serve import ServeConfig
from rlctl.envs.errors import ConfigError, in_one_line, on_one_line
from rlctl.envs.experience import SafeLevelMemory
from rlctl.envs.host.cgroup.journal import read_own
from rlctl.envs.plant import Plant
from rlctl.envs.whole_file import write_whole

log = logging.getLogger("rlctl.serve")

MEMORY = "memory.json"
"""Below the state directory."""

SCHEMA = 1
KEEP_SECONDS = 60.0
"""Between two writes: so much is lost when the service is killed."""

CLOCK_LEAP_SECONDS = 10 * 365 * 86400.0
"""What was kept so long ago was kept under a clock that had not been set."""

MOST_BYTES, MOST_LEARNERS = 1 << 20, 64


class Learner(Protocol):
    """What learns of a host: the experience of who controls it, an LC's maximum load, its error budget."""

    @property
    def name(self) -> str:
        """Under which it is kept."""

    def state_dict(self) -> Mapping[str, Any]:
        """What it has learned, as plain data for `restore_state`; empty when it is nothing."""

    def restore_state(self, memory: Mapping[str, Any]) -> None:
        """Go on with that; ValueError: it is nothing of its."""


class HostMemory:
    """Gives who learns what it learned of this host before, and keeps what it learns.

    Args:
        state_directory: Has the file; None keeps nothing.
        host: What has to be the same for that to say anything: CPUs, target, maximum load, BE's weight. Plain data.
            What says itself of what it is, under `of`, is left to its learner.
        guessed: Some of that is not known yet: what is kept of a host stays as it is, and nothing of it is gone by.
        clock: Answers the Unix time.
    """

    def __init__(
        self,
        state_directory: Path | None,
        host: Mapping[str, Any],
        clock: Callable[[], float] = time.time,
        *,
        guessed: bool = False,
    ) -> None:
        self._guessed = guessed
        self._path = None if state_directory is None else state_directory / MEMORY
        self._host, self._clock = json.loads(json.dumps(host, default=str)), clock
        self._due_seconds = clock() + KEEP_SECONDS

    def set_target(self, lc: str, target_seconds: float) -> None:
        """An LC's target is this proposal from now on: what is kept of another one says nothing."""
        self._host.setdefault("proposed targets", {})[lc] = target_seconds

    def restore_state(self, learner: Learner) -> None:
        """Have one that has just been started go on with what it knew; without that it learns anew."""
        if self._path is None:
            return
        try:
            there, learned = self._read(self._path)
            kept = learned.get(learner.name)
            # On a guessed host only learners count that say themselves what they are about.
            if kept is None or (self._guessed and not _says_of_what(kept)):
                return
            if (changed := self._list_changes(there)) and not _says_of_what(kept):
                raise ConfigError(f"another {', '.join(changed)} than when it was learned")
            # `max` in this order makes NaN 0.
            seconds = max(0.0, self._clock() - float(kept["saved"]))
            seconds = seconds if seconds < CLOCK_LEAP_SECONDS else 0.0
            learner.restore_state(kept["memory"])
            # Only experience ages; other learners go by Unix time.
            if isinstance(learner, SafeLevelMemory):
                learner.age(seconds)
        except Exception as error:  # noqa: BLE001 - whatever is in a file, the service begins
            log.warning("%s: %s is learned anew: %s", self._path, learner.name, in_one_line(error))
        else:
            # What is kept may say no more than that there was nothing to keep.
            something = any(value for key, value in kept["memory"].items() if key not in ("schema", "of"))
            words = "goes on with what it knew" if something else "begins anew: it knew nothing"
            log.info("%s %s of this host %s", learner.name, words, _ago(seconds))

    def keep_if_due(self, learners: Sequence[Learner]) -> None:
        """Keep what they have learned, once in KEEP_SECONDS; and where the clock was set back."""
        if not 0.0 < self._due_seconds - self._clock() <= KEEP_SECONDS:
            self.keep(learners)

    def keep(self, learners: Sequence[Learner]) -> None:
        """Keep what they have learned; a file that cannot be written is told, and nothing else happens."""
        # Due again even where the write fails, so that a full disk is not tried in every tick.
        self._due_seconds = self._clock() + KEEP_SECONDS
        learned = {one.name: _state_of(one) for one in learners}
        if self._guessed:
            learned = {name: memory for name, memory in learned.items() if "of" in memory}
        if self._path is None or not any(learned.values()):
            return
        try:
            there, before = self._read(self._path)
        except (OSError, ConfigError):
            there, before = self._host, {}
        # Of another host nothing is carried over, except what does not depend on the host.
        if not self._guessed and self._list_changes(there):
            before = {name: kept for name, kept in before.items() if _says_of_what(kept)}
        now = round(self._clock(), 3)
        # A learner of a policy that is not in use keeps what it knew for the day that it is back.
        others = {name: kept for name, kept in before.items() if not learned.get(name)}
        latest = others | {name: {"saved": now, "memory": memory} for name, memory in learned.items() if memory}
        kept = dict(list(latest.items())[-MOST_LEARNERS:])
        try:
            # On one line: a number to a line would be twice the size, every minute.
            host = there if self._guessed else self._host
            write_whole(self._path, json.dumps({"schema": SCHEMA, "host": host, "learned": kept}) + "\n")
        except OSError as error:
            log.warning("%s: %s: a restart learns this host anew", error.filename, error.strerror)

    def _list_changes(self, there: Mapping[str, Any]) -> list[str]:
        """What of the host is not as in the file."""
        return sorted(key for key in there.keys() | self._host.keys() if there.get(key) != self._host.get(key))

    def _read(self, path: Path) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Of what host something was known, and by name what, the latest last; nothing of this one without a file.

        Raises:
            ConfigError: It is no such file.
            OSError: It cannot be read.
        """
        try:
            return parse_memory(path, read_own(path, MOST_BYTES))
        except FileNotFoundError:
            return self._host, {}


def host_of(config: ServeConfig, plant: Plant, waiting: Collection[str] = ()) -> dict[str, object]:
    """What must not have changed if what was learned of a host is to say anything of it.

    Of the workload not what every start of the same service has anew, a process id or a pod.

    Args:
        waiting: LCs that are judged by what they wait for, whatever is configured.
    """
    beside = {"error_budget_percent"}
    objectives = {name: lc.slo.model_dump(mode="json", exclude=beside) for name, lc in config.lcs.items()}
    services = {
        name: lc.workload.model_dump(mode="json")
        for name, lc in config.lcs.items()
        if lc.workload.kind in ("cgroup", "unit")
    }
    sources = {
        name: {
            "kind": "waiting" if name in waiting else lc.latency.kind,
            "window_seconds": getattr(lc.latency, "window_seconds", None),
        }
        for name, lc in config.lcs.items()
    }
    limits = asdict(plant.limits)
    # It follows from BE's weight, which is not set yet.
    del limits["least_weight"]
    # How BE is held says nothing of the levels that were safe.
    del limits["can_freeze"]
    return {
        "limits": limits,
        "slo": objectives,
        "service": services,
        "latency source": sources,
        "quota period": config.quota_period_milliseconds,
        "BE's weight": config.be.weight,
        "link": config.be.link,
        "control period": plant.tick_seconds,
    }


def _ago(seconds: float) -> str:
    """A length of time, in minutes where it is less than an hour."""
    if seconds < 60.0:
        return "a moment ago"
    if seconds < 3600.0:
        return f"{seconds / 60.0:.0f} min ago"
    return f"{seconds / 3600.0:.1f} h ago"


def _says_of_what(kept: Any) -> bool:
    """An error budget depends on its target alone, not on the whole host; its learner sees whether that is the same."""
    memory = kept.get("memory") if isinstance(kept, dict) else None
    return isinstance(memory, dict) and "of" in memory


def _state_of(learner: Learner) -> Mapping[str, Any]:
    try:
        return learner.state_dict()
    except Exception as error:  # noqa: BLE001 - nobody is trusted not to fail, and the loop goes on
        log.warning("what %s learned is not kept: %s", learner.name, in_one_line(error))
        return {}


def parse_memory(path: Path, text: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The host that a file is of, and by name what was learned of it; ConfigError: it is no file of this kind."""
    try:
        plain = json.loads(text)
        host, learned = plain["host"], plain["learned"]
        if plain["schema"] != SCHEMA or not isinstance(host, dict) or not isinstance(learned, dict):
            raise ValueError(f"schema {plain['schema']!r}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"is no memory of a host: {on_one_line(str(error))[:80]}", path) from error
    return host, learned
