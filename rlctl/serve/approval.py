"""Whether somebody approved who decides (`approve: true`), and what waits for their word.

What was approved last is kept in the state directory, so that a restart is no way around it. What nobody approved can
only restrict BE: a reload changes nothing before a yes, and at a start BE is at the safe allocation, by a bound of the
shield (`Shield.hold`), until there is one. A reload may begin to ask, and none ends it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, in_one_line
from rlctl.envs.host.cgroup.journal import read_own
from rlctl.envs.whole_file import write_json
from rlctl.safety.verdict import Bound, Reason
from rlctl.serve.deciders import Deciders
from rlctl.serve.hands import Hands

log = logging.getLogger("rlctl.serve")

APPROVED = "approved.json"
"""Below the state directory."""

SCHEMA = 1
MOST_BYTES = 1 << 16


class Approval:
    """What was approved last, and what waits for a word. Only the control loop's thread uses it.

    Args:
        state_directory: Keeps what was approved. None keeps nothing: then who decides at the start counts as approved,
            as it does at the first start that finds nothing kept.
        hands: Tells people what waits, and takes their word.
        deciders: Who decides at the start, and whether a word is asked for.
    """

    def __init__(self, state_directory: Path | None, hands: Hands, deciders: Deciders) -> None:
        self._path = None if state_directory is None else state_directory / APPROVED
        self._hands = hands
        self._asks = hands.asks = deciders.approve
        self._in_force = deciders.described
        self._kept = True  # the file has what is approved
        self._approved = self._begun() if self._asks else ""
        self._approved_before = self._approved
        self._unapproved = self._in_force if self._asks and self._in_force != self._approved else ""
        self._brought: Deciders | None = None
        if not self._asks and self._path is not None and self._path.exists():
            log.warning("who decides needs no word any more: `approve: true` was taken out of the configuration")
        if self._unapproved:
            log.warning("nobody approved who decides by the configuration: BE stays at the safe allocation until then")
            self._ask(self._unapproved)

    def bounds(self, limits: Limits) -> tuple[Bound, ...]:
        """The safe allocation while nobody approved who decides, else nothing."""
        if not self._unapproved:
            return ()
        return (Bound("approval", Reason.NOT_APPROVED, limits.safe, f"waits for `rlctl approve`: {self._unapproved}"),)

    def admitted(self, brought: Deciders | None) -> Deciders | None:
        """Who is to decide from now on: what a reload brought, after a yes, or at once where that was approved last.

        A later reload takes the place of what waits. None: nobody else than until now.
        """
        self._approved_before = self._approved
        if not self._kept:
            self._keep(self._approved)
        if brought is not None and brought.approve and not self._asks:
            self._ask_from_now_on()
        if not self._asks:
            return brought
        word = self._hands.word()  # before what the reload brings, which it is no word on
        admitted = self._yes() if word == "yes" else None
        if word == "no":
            self.close()
        if brought is not None:
            self.close()
            if brought.described == self._approved:
                self._hands.nothing_waits()
                if admitted is not None:
                    admitted.policy.close()
                return brought
            self._brought = brought
            self._ask(brought.described)
        elif self._unapproved and not self._hands.waiting:  # after a no to it, or to what a reload brought
            self._ask(self._unapproved)
        return admitted

    def exchanged(self, deciders: Deciders) -> None:
        """These, who were admitted, decide now."""
        self._in_force, self._unapproved = deciders.described, ""

    def refused(self) -> None:
        """Who was admitted cannot decide here: a restart begins with who was approved before."""
        if self._asks:
            self._keep(self._approved_before)

    def close(self) -> None:
        """Let go of what a reload brought and nobody approved. Idempotent."""
        brought, self._brought = self._brought, None
        if brought is not None:
            brought.policy.close()

    def _yes(self) -> Deciders | None:
        brought, self._brought = self._brought, None
        if brought is not None:
            self._keep(brought.described)
            return brought
        self._keep(self._unapproved)
        self._unapproved = ""
        return None

    def _ask_from_now_on(self) -> None:
        """Who decides now counts as approved, not who comes with the word: whoever may edit the file wrote both."""
        self._asks = self._hands.asks = True
        self._approved = self._first("`approve: true` from now on")
        self._unapproved = self._in_force if self._in_force != self._approved else ""

    def _ask(self, wanted: str) -> None:
        self._hands.wait_for_word(f"{self._approved} -> {wanted}")

    def _begun(self) -> str:
        """What was approved before this start."""
        if self._path is None:
            return self._in_force
        try:
            plain = json.loads(read_own(self._path, MOST_BYTES))
            if plain["schema"] != SCHEMA or not isinstance(plain["approved"], str):
                raise ValueError(f"schema {plain['schema']!r}")
        except FileNotFoundError:
            return self._first("the first start with `approve: true`")
        except (OSError, ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
            log.error("%s cannot be read, so nothing counts as approved: %s", self._path, in_one_line(error))
            return "nothing that can be read"
        return str(plain["approved"])

    def _first(self, when: str) -> str:
        """What is approved where nobody was asked before."""
        self._keep(self._in_force)
        if not self._kept:
            return "nothing that could be kept"  # which is kept as soon as that can be: a start then is no first one
        log.info("%s: %s counts as approved", when, self._in_force)
        return self._in_force

    def _keep(self, described: str) -> None:
        """Have a restart know it; what cannot be written is tried again in each tick."""
        self._approved, was_kept = described, self._kept
        if self._path is None:
            return
        try:
            write_json(self._path, {"schema": SCHEMA, "approved": described}, lasting=True)
        except OSError as error:
            self._kept = False
            if was_kept:
                log.error("%s: %s: what is approved is kept as soon as it can be", error.filename, error.strerror)
        else:
            self._kept = True
