"""Damaged tick logs, as `rlctl why`, `rlctl replay` and `rlctl top` meet them.

Whatever the log holds, a command ends with an exit code that it documents and at most one line of error, and all that
it prints can be printed. A line with a checksum that is believed is one that was written.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import strategies as st

from rlctl.agents import catalogue
from rlctl.envs.allocation import Limits
from rlctl.envs.ticklog import LOG_NAME, decode_line, encode_line
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.doubles.plant import FakePlant
from tests.doubles.tick_logs import record_run
from tests.fuzz import inputs
from tests.fuzz.commands import run
from tests.fuzz.engine import Case, Target
from tests.fuzz.watch import guarded

COMMANDS = (
    ("why",), ("why", "--json"), ("why", "tick 2"), ("replay",), ("replay", "--json"),
    ("replay", "--shield", "heracles"),
    ("top", "--once"), ("top", "--once", "--json"),
)  # fmt: skip
TOKENS = tuple(
    b'"crc"|"log":1|"tick":0|"tick":1|"missing":"stale"|"value":"nan"|"value":"-inf"|"age":null|"frozen":false'
    b'|"quota_cpus":null|"quota_cpus":1e9|"cpuset_cpus":4|"seen_seconds":1|"guards":{}'.split(b"|")
)


def _log() -> bytes:
    """Four ticks and their header."""
    with tempfile.TemporaryDirectory() as folder:
        plant = FakePlant(Limits(cpus=2), loads=(0.3, 0.5, 0.99))
        shield, policy = Shield(load_profile("responsive"), plant.limits), catalogue.build("greedy-shield")
        return (record_run(Path(folder), plant, policy, shield, 4) / LOG_NAME).read_bytes()


LOG = _log()
SAID = [decode_line(line)[0] for line in LOG.splitlines()]


def _with_checksums(documents: list[dict[str, object]]) -> bytes:
    lines = []
    for one in documents:
        try:
            lines.append(encode_line(one))
        except ValueError:  # a number that JSON does not have: as an editor would leave it
            lines.append(json.dumps(one).encode() + b"\n")
    return b"".join(lines)


_HOW = st.sampled_from([str(number).encode() for number in range(len(COMMANDS))])
_FORGED = inputs.altered([SAID, SAID[:2]]).map(
    lambda all_: _with_checksums([one for one in all_ if isinstance(one, dict)])
)
CASES = st.one_of(
    st.fixed_dictionaries({"log": inputs.texts((LOG, LOG[: len(LOG) // 2]), TOKENS), "how": _HOW}),
    st.fixed_dictionaries({"log": _FORGED, "how": _HOW, "new checksums": st.just(b"")}),
)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Callable[[Case], str]]:
    """A directory that holds one log."""
    path = folder / LOG_NAME
    path.write_bytes(LOG)
    for command in COMMANDS:
        run(_arguments(command, path))  # imports what it needs

    def check(case: Case) -> str:
        path.write_bytes(case["log"])
        command = COMMANDS[int(case["how"])]
        with guarded(folder):
            outcome = run(_arguments(command, path))
        if "new checksums" not in case:
            _nothing_new(case["log"])
        return outcome

    yield check


def _nothing_new(log: bytes) -> None:
    """What has a sound checksum was written so."""
    for line in log.split(b"\n"):
        with contextlib.suppress(ValueError):
            said, checked = decode_line(line)
            assert not checked or said in SAID, f"a line is believed that was not written: {line[:200]!r}"


def _arguments(command: tuple[str, ...], path: Path) -> list[str]:
    name, *others = command
    return [name, str(path), *others] if name == "replay" else [name, *others, "--log", str(path)]


TARGET = Target("ticklog", CASES, opened)
