"""The start-up self-test: what a daemon relies on is used once, before its first tick and before it says READY.

`rlctl doctor` only looks; here each knob of BE is written and each answer waited for. Freezing is not tried apart: BE
begins at the safe allocation, which `Controller.begin` writes to the groups themselves and reads back. What rlctl can
do without is a line in the log; what it cannot ends the start, with everything as it was.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rlctl.agents.policy import Policy
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import ConfigError, HostError, in_one_line
from rlctl.envs.host.live import LiveHost
from rlctl.envs.observation import Observation, Observer
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.safety.memory_guards import MemoryBandwidthGuard, MemoryPressureGuard
from rlctl.safety.profile import Profile
from rlctl.safety.trust import NEVER_THERE
from rlctl.serve.starvation import check_command

log = logging.getLogger("rlctl.serve")

CLOCK_SECONDS = 0.02
"""A sleep of a millisecond is over by then, as the monotonic clock has it."""

YEAR_2020 = 1_577_836_800.0

SENSING = (MemoryPressureGuard, MemoryBandwidthGuard)
"""Guards that take a sensor which a host may lack."""

Lines = Iterator[tuple[int, str]]
"""Level and text of lines for the log."""


def self_test(
    host: LiveHost,
    policy: Policy,
    watchdog: int | None,
    *,
    dry_run: bool = False,
    profile: Profile | None = None,
    command: Sequence[str] = (),
) -> None:
    """Try everything once, a line for each; nothing of it is left behind.

    Args:
        watchdog: The watchdog's process, which has confirmed its plan; None if there is none.
        profile: The shield's, for guards whose sensors this host may lack.
        command: `be.starved.command`; it is looked for, not run.

    Raises:
        HostError: The clock stands still, or a knob does not take the value that it has.
        PermissionMissing: A knob may not be written.
    """
    begun = time.perf_counter()
    checks = (_clock(), _knobs(host, dry_run), _watchdog(watchdog, dry_run), _latency(host), _guards(host, profile))
    for level, line in itertools.chain(*checks, _command(command), _policy(host, policy)):
        # What works is said with -v only: a start that works fills no screen.
        log.log(logging.DEBUG if level == logging.INFO else level, "self-test: %s", line)
    log.info("self-test: done in %.0f ms", 1e3 * (time.perf_counter() - begun))


def _clock(
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Lines:
    begun = monotonic()
    # Twenty short sleeps: the test ends after the first that moves the clock.
    for _ in range(round(CLOCK_SECONDS / 0.001)):
        sleep(0.001)
        if monotonic() > begun:
            break
    else:
        raise HostError("the monotonic clock stands still: no control period would ever end")
    # A board without a battery begins in 1970 until NTP sets it.
    if wall() < YEAR_2020:
        yield logging.WARNING, "the wall clock is before 2020: the times in the tick log will be wrong until it is set"


def _knobs(host: LiveHost, dry_run: bool) -> Lines:
    if dry_run:
        yield logging.INFO, "dry run: the knobs of BE are not tried"
    else:
        yield logging.INFO, f"{host.actuator.rehearse()} knobs of BE take what is written to them"


def _watchdog(pid: int | None, dry_run: bool) -> Lines:
    if pid is not None:
        yield logging.INFO, f"the watchdog (pid {pid}) has confirmed its plan"
    elif not dry_run:
        yield logging.WARNING, "there is no watchdog: when rlctl dies, BE stays as it is until `rlctl restore`"


def _latency(host: LiveHost) -> Lines:
    telemetry = host.read()
    latency = telemetry.latency_seconds
    if telemetry.idle:
        yield logging.INFO, "the LC is idle"
        return
    if isinstance(latency, Value):
        yield logging.INFO, f"latency {telemetry.latency_in_words}"
        return
    why = f"no latency yet: {latency.detail or latency.why}"
    # NO_DATA is usual at a start: a window has to pass first.
    level = logging.INFO if latency.why is Why.NO_DATA else logging.WARNING
    yield level, f"{why}; until there is one BE stays at the safe allocation"


def _guards(host: LiveHost, profile: Profile | None) -> Lines:
    # A guard whose sensor is missing never objects, which an operator should know before relying on it.
    sensing = [one for one in (profile.guards() if profile else ()) if isinstance(one, SENSING)]
    for guard in sensing:
        reading = guard.reading(host.read())
        if isinstance(reading, Missing) and reading.why in NEVER_THERE:
            why = reading.detail or reading.why
            yield logging.WARNING, f"guard {guard.name} never objects, for want of a sensor: {why}"


def _command(words: Sequence[str]) -> Lines:
    try:
        check_command(words)
    except ConfigError as error:
        yield logging.WARNING, f"{error}; nobody will be told that BE starves, but in the log"


def _policy(host: LiveHost, policy: Policy) -> Lines:
    try:
        # The first answer loads libraries and takes long: better here than in the first tick.
        seconds = policy.rehearse(host.limits, _typical(host))
    except Exception as error:  # noqa: BLE001 - the loop answers it with the safe allocation, tick by tick
        if policy.heuristic:
            yield logging.WARNING, f"policy {policy.name}: {error}; {policy.heuristic.name} decides in its place"
        else:
            yield logging.WARNING, f"policy {policy.name} fails: {in_one_line(error)}; BE gets the safe allocation"
        return
    if seconds is not None:
        yield logging.INFO, f"policy {policy.name} answers within {1e3 * seconds:.2g} ms"


def _typical(host: LiveHost) -> Observation:
    """A quiet tick, whatever this host is at just now."""
    target_seconds = 0.01
    telemetry = Telemetry(
        time.monotonic(),
        target_seconds,
        tail_latency_seconds=Quantile(0.5 * target_seconds, samples=1000, window_seconds=host.tick_seconds),
        oldest_request_seconds=Value(0.0),
        load_ratio=Value(0.5),
    )
    mask = np.ones(len(MOVES), np.bool_)
    return Observer(host.limits, host.tick_seconds).observe(telemetry, host.limits.safe, mask)
