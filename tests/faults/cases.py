"""The faults: how each is brought about, where BE has to be then, and what the log has to say."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import TestbedError
from rlctl.envs.host.cgroup.journal import JOURNAL
from tests.faults import bundles
from tests.faults.client import Client, Endpoint
from tests.faults.launcher import CLOCK, FREEZER, WRITE
from tests.faults.link_kills import LINK_KILLS
from tests.faults.pace import Promise
from tests.faults.perf_stub import PERF
from tests.faults.stage import Stage, TooLate

AFTERWARDS_TICKS = 4.0
"""How long BE is watched once it is where it has to be."""

UNSEEN_TICKS = 3.0
"""So many ticks after a stall there may still be one that goes by what was before it."""

NESTED, RESETS = 150, 60
FOREIGN_WRITES = 3
NOTICED_TICKS = 1.5
"""What somebody else wrote is noticed by the next tick; half of one for a machine that is busy."""

STEPS, AFTER_TICKS, ANSWERED_TICKS = 5, 0.1, 0.5
"""Writes in step with the ticks, how long after each of them, and when it is answered: before the next one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done when, all in monotonic seconds.

    Attributes:
        at_seconds: The fault.
        counted_seconds: From when on time counts; later than the fault where that alone must change nothing.
        wanted: Where BE has to be: the safe allocation, or None for the verdict in force.
        until_seconds: How long it was watched.
        excused: Spans in which BE might be freer.
        stays: Once there, BE had to stay there.
    """

    at_seconds: float
    counted_seconds: float
    wanted: Allocation | None
    until_seconds: float
    excused: tuple[tuple[float, float], ...] = ()
    stays: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the matrix.

    Attributes:
        name: For `--only`.
        does: What is done, in a line.
        act: Brings the fault about and watches, with BE free at the beginning.
        says: What the log or the service must have said by then; a regular expression.
        end: Ends the run in a way that has to bring the originals back.
        config: Sections of the configuration that differ.
        inside: The fault inside the controller, see `tests.faults.launcher`.
        path: A folder that the controller's PATH begins with.
        endpoint: Latency comes from an endpoint.
        hold: How BE is held at the least: `quota` never freezes it.
        promise: Within which time BE has to be where it has to be.
        escapes: A task of BE leaves its groups, so that its CPU time is in nobody's hands.
        counted_late: Time counts from the stall of the client that follows the fault.
        lacks: Why it cannot be here; empty if it can.
    """

    name: str
    does: str
    act: Callable[[Stage], Fault]
    says: str
    end: Callable[[Stage], None]
    config: Callable[[Stage], Mapping[str, object]] = lambda stage: {}
    inside: str = ""
    path: Callable[[Stage], str] = lambda stage: ""
    endpoint: bool = False
    hold: str = "freeze"
    promise: Promise = Promise.STALE
    escapes: bool = False
    counted_late: bool = False
    lacks: Callable[[], str] = lambda: ""


def _to_safe(fault: Callable[[Stage], None], excused: Promise | None = None) -> Callable[[Stage], Fault]:
    """BE has to go to the safe allocation, and stay; until a promise's time it may be freer than the verdict."""

    def act(stage: Stage) -> Fault:
        at = time.monotonic()
        fault(stage)
        with contextlib.suppress(TooLate):  # which the time tells
            stage.until(lambda: stage.taken_since(at), "BE told to go to the safe allocation")
        reached = time.monotonic()
        # A controller that cannot write for long is taken for one that hangs.
        stage.watch(AFTERWARDS_TICKS / 2 if excused else AFTERWARDS_TICKS)
        # A watchdog that was left alone puts back the originals then; on a busy machine BE may be safe only later.
        restored = max(reached, at + stage.pace.restore_after_seconds)
        spans = ((at, at + excused.seconds(stage.pace)),) if excused else ()
        return Fault(at, at, stage.limits.safe, min(time.monotonic(), restored), spans)

    return act


def _to_safe_once(fault: Callable[[Stage], None]) -> Callable[[Stage], Fault]:
    """BE has to go to the safe allocation, and is then within each verdict again."""

    def act(stage: Stage) -> Fault:
        at = time.monotonic()
        fault(stage)
        stage.until(lambda: stage.taken_since(at), "BE told to go to the safe allocation")
        stage.trigger.unlink(missing_ok=True)
        stage.until(lambda: stage.free, "BE free again")
        return Fault(at, at, stage.limits.safe, time.monotonic(), stays=False)

    return act


def _never_frozen(act: Callable[[Stage], Fault]) -> Callable[[Stage], Fault]:
    """The same, and BE was at no time told to stand still: what asks it had an answer."""

    def watched(stage: Stage) -> Fault:
        fault = act(stage)
        if any(one.ordered or (one.found and one.found.frozen) for one in stage.onlooker.samples):
            raise TestbedError("BE was frozen, though be.hold is quota")
        return fault

    return watched


def _unchanged(fault: Callable[[Stage], None]) -> Callable[[Stage], Fault]:
    """The fault changes nothing: each verdict holds, and a client that then stalls still takes BE to safety."""

    def act(stage: Stage) -> Fault:
        at = time.monotonic()
        fault(stage)
        stage.watch(AFTERWARDS_TICKS)
        stage.until(lambda: stage.free, "BE as free as before")
        stalled = time.monotonic()
        stage.source.stall()
        stage.watch(UNSEEN_TICKS)
        stage.until(lambda: stage.safe, "BE at the safe allocation after the client has stalled")
        stage.watch(2.0)
        return Fault(at, stalled, stage.limits.safe, time.monotonic())

    return act


def _within_verdict(fault: Callable[[Stage], None], excused_ticks: float = 0.0) -> Callable[[Stage], Fault]:
    """BE has to be within whatever verdict is in force, from so many ticks after the fault on."""

    def act(stage: Stage) -> Fault:
        fault(stage)
        at = time.monotonic()
        stage.watch(AFTERWARDS_TICKS)
        return Fault(at, at, None, time.monotonic(), ((at, at + excused_ticks * stage.pace.tick_seconds),))

    return act


def _escape_unseen(stage: Stage) -> None:
    """The same, and the counter that tells of it is set back all the while."""
    stage.let_escape()
    usage = stage.be.usage_file
    assert usage is not None
    for _ in range(RESETS):
        if stage.safe:
            return
        usage.write_text("0")
        stage.watch(0.3 * stage.pace.tick_seconds)


def _foreign(stage: Stage) -> Fault:
    """Several writes; one tick after each the verdict is in force again, a fixed quota far below what is written."""
    excused, writes = [], []
    for _ in range(FOREIGN_WRITES):
        begun = time.monotonic()
        stage.free_be()
        writes.append(written := time.monotonic())
        excused.append((begun, written + NOTICED_TICKS * stage.pace.tick_seconds))
        stage.watch(AFTERWARDS_TICKS)
    return Fault(writes[0], writes[0], None, time.monotonic(), tuple(excused))


def _foreign_in_step(stage: Stage) -> Fault:
    """A write soon after each tick: who answers at the next one only leaves BE free nearly all the time."""
    excused = []
    for _ in range(STEPS):
        stage.await_free()
        stage.watch(AFTER_TICKS)
        begun = time.monotonic()
        stage.free_be()
        excused.append((begun, time.monotonic() + ANSWERED_TICKS * stage.pace.tick_seconds))
    stage.watch(1.0)
    at = excused[0][0]
    return Fault(at, at, None, time.monotonic(), tuple(excused))


def _both_killed(stage: Stage, meanwhile: Callable[[Stage], None] = lambda stage: None) -> Fault:
    """Nobody is left; whoever supervises the service starts it again."""
    at = time.monotonic()
    for pid in (stage.service.watchdog, stage.service.pid):
        os.kill(pid, signal.SIGKILL)
    stage.service.process.stop()
    meanwhile(stage)
    # A start that is refused is nobody's successor: the time counts from that of one who may.
    begun = time.monotonic()
    stage.serve_again()
    stage.until(lambda: stage.taken_since(begun), "BE told to go to the safe allocation")
    stage.until(lambda: stage.free, "BE free again under the new controller")
    return Fault(at, begun, stage.limits.safe, time.monotonic(), stays=False)


def _with_link(case: Case) -> Case:
    """The same with BE's packets held on an interface, which has to be as before at the end."""

    def act(stage: Stage) -> Fault:
        stage.until(lambda: stage.holds_link, "the link held")
        return case.act(stage)

    def config(stage: Stage) -> dict[str, object]:
        return {"be": {**stage.be_config, "link": stage.make_link()}}

    does = f"{case.does}, with BE held on a link"
    return replace(case, name=f"link-{case.name}", does=does, act=act, config=config, lacks=LINK_KILLS[0].lacks)


def _start_elsewhere(stage: Stage) -> None:
    """A start with another state directory, which has to be refused: the originals are in the first one."""
    config = stage.folder / "serve.yaml"
    text = config.read_text()
    config.write_text(text.replace(str(stage.folder / "state"), str(stage.folder / "elsewhere")))
    stage.serve_again()
    if (code := stage.service.process.wait(stage.pace.patience_seconds)) != os.EX_TEMPFAIL:
        raise TestbedError(f"with another state directory the exit code is {code}: {stage.service.process.tail()}")
    config.write_text(text)


def _leave(stage: Stage) -> None:
    """SIGTERM: it puts back the originals itself."""
    stage.trigger.unlink(missing_ok=True)
    stage.service.signal(signal.SIGTERM)
    if (code := stage.service.process.wait(stage.pace.patience_seconds)) != 0:
        raise TestbedError(f"after SIGTERM the exit code is {code}: {stage.service.process.tail()}")


def _left_to_watchdog(stage: Stage) -> None:
    """The controller stays away: its watchdog puts back the originals."""
    journal = stage.folder / "state" / JOURNAL
    stage.until(lambda: not journal.exists(), "the originals put back by the watchdog")


def _left_to_successor(stage: Stage) -> None:
    """The controller hangs: its watchdog ends it, and holds BE until a successor is there."""
    stage.service.process.wait(stage.pace.patience_seconds)
    stage.trigger.unlink(missing_ok=True)
    stage.watch(AFTERWARDS_TICKS)
    if not stage.safe:
        raise TestbedError(f"BE was set free after a hang: {stage.service.process.tail()}")
    stage.serve_again()
    stage.until(lambda: stage.free, "BE free again under the new controller")
    _leave(stage)


def _starts_again(stage: Stage) -> None:
    """It leaves, and starts again with what is there now; with a stalled client BE must then be safe, and stay."""
    _leave(stage)
    stage.serve_again()
    begun = time.monotonic()
    stage.until(lambda: stage.taken_since(begun), "BE at the safe allocation after the restart")
    # What stood still before the start is news to it once.
    stage.watch(AFTERWARDS_TICKS + Promise.STALE.seconds(stage.pace) / stage.pace.tick_seconds)
    if not stage.safe:
        raise TestbedError(f"started with garbage it set BE free: {stage.service.process.tail()}")
    _leave(stage)


def _trigger(stage: Stage) -> None:
    stage.trigger.touch()


def _tell(**figures: float) -> Callable[[Stage], None]:
    """The endpoint tells these figures from now on."""

    def act(stage: Stage) -> None:
        assert isinstance(stage.source, Endpoint)
        stage.source.figures = {**stage.source.figures, **figures}

    return act


def _garble(stage: Stage) -> None:
    assert isinstance(stage.source, Client)
    stage.source.garble()


def _fill_log(stage: Stage) -> None:
    """The log's place is /dev/full, where every write ends with ENOSPC; what was written before is kept aside.

    Nobody reads the verdicts any more, so it is done when they do not change.
    """
    stage.until(lambda: stage.settled, "BE at a fixed quota")
    log = stage.folder / "log" / "ticks.jsonl"
    shutil.copyfile(log, log.with_name("before.jsonl"))
    full = log.with_name("full")
    full.symlink_to("/dev/full")
    full.replace(log)  # the old file has no name any more, which the controller notices


def _garbage(file: Callable[[Stage], Path]) -> Callable[[Stage], None]:
    def act(stage: Stage) -> None:
        file(stage).write_bytes(bytes(range(255, 0, -1)) * 7)
        stage.service.signal(signal.SIGHUP)

    return act


def _grows(stage: Stage) -> dict[str, object]:
    """BE is not free at once, as it is at the least weight: it grows, and so there is something to write."""
    return {"be": {**stage.be_config, "weight": "leave"}}


def _kill_perf(stage: Stage) -> None:
    stage.until(lambda: bool(stage.service.perf), "a perf child of the controller's")
    os.kill(stage.service.perf, signal.SIGKILL)


def _stub_perf(stage: Stage) -> str:
    """A folder with a stand-in for perf where this host has none; else nothing."""
    if shutil.which("perf"):
        return ""
    folder = stage.folder / "bin"
    folder.mkdir()
    (folder / "perf").write_text(f"#!{sys.executable} -IS\n{PERF}")
    (folder / "perf").chmod(0o755)
    return str(folder)


_STATIC: Mapping[str, object] = {"policy": {"name": "static"}}


def _learned(policy: str) -> Callable[[Stage], Mapping[str, object]]:
    """A bundle decides, and stays in office whatever the shield thinks of it."""

    def config(stage: Stage) -> Mapping[str, object]:
        folder = bundles.make(policy, stage.folder / "bundle")
        fallback = {"drift_percent": 100, "override_percent": 100}
        return {"policy": {"name": str(folder)}, "fallback": fallback}

    return config


def _signal(number: signal.Signals, whom: Callable[[Stage], int]) -> Callable[[Stage], None]:
    return lambda stage: os.kill(whom(stage), number)


def _controller(stage: Stage) -> int:
    return stage.service.pid


def _lc(stage: Stage) -> int:
    return stage.lc_process.pid


_SENSOR = Case("sensor", "", _to_safe(_trigger), "", _leave, endpoint=True)
_POLICY = Case("policy", "", _to_safe(_trigger), "", _leave, promise=Promise.TICK)
_LEARNED = Case(
    "learned", "", _within_verdict(_trigger), "", _leave, endpoint=True, config=_learned("grows"), promise=Promise.TICK
)  # fmt: skip
_HELD = Case("held", "", _unchanged(_trigger), "", _leave, counted_late=True)

CASES: tuple[Case, ...] = (
    replace(_SENSOR, name="sensor-stale", does="the latency endpoint repeats itself", says="latency-stale",
            act=_to_safe(lambda stage: stage.source.stall())),
    replace(_SENSOR, name="sensor-nan", does="a tail latency of NaN", says="latency-missing|absurd",
            act=_to_safe(_tell(tail=float("nan")))),
    replace(_SENSOR, name="sensor-absurd", does="a tail latency of -5 s at a load of -1", says="latency-missing|absurd",
            act=_to_safe(_tell(tail=-5.0, rps=-400.0))),
    replace(_SENSOR, name="requests-fail", does="one request in ten fails, as fast as ever", says="latency-missing",
            act=_to_safe(_tell(errors=5.0))),
    replace(_SENSOR, name="quota-hold-stale", does="the endpoint repeats itself, and BE is held by quota, never frozen",
            says="latency-stale", act=_never_frozen(_to_safe(lambda stage: stage.source.stall())), hold="quota"),
    Case("log-unusable", "one line in ten of the latency log is null", _to_safe(_garble), "latency-missing", _leave),
    Case("lc-killed", "SIGKILL to the LC", _to_safe(_signal(signal.SIGKILL, _lc)), "lc-dead", _leave,
         promise=Promise.TICK),
    Case("lc-stalled", "SIGSTOP to the LC", _to_safe(_signal(signal.SIGSTOP, _lc)), "latency-missing|too-few", _leave),
    Case("client-stalled", "the client sends and tells nothing more", _to_safe(lambda stage: stage.source.stall()),
         "latency-missing|too-few", _leave),
    replace(_HELD, name="perf-child-killed", does="SIGKILL to the perf child", act=_unchanged(_kill_perf),
            says="perf stat ended", config=lambda stage: {"perf": True}, path=_stub_perf),
    replace(_POLICY, name="policy-raises", does="the manager raises", says="policy failed", inside="policy-raises"),
    replace(_POLICY, name="policy-nan", does="the manager answers NaN", says="nan is no action", inside="policy-nan"),
    replace(_POLICY, name="policy-out-of-range", does="the manager asks for 10^9 CPUs and for move 10^6",
            says="outside the table", inside="policy-out-of-range", act=_to_safe_once(_trigger)),
    replace(_POLICY, name="policy-hangs", does="the manager never answers", says="has not renewed its lease",
            inside="policy-hangs", end=_left_to_successor, promise=Promise.LEASE),
    replace(_LEARNED, name="bundle-raises", does="a bundle's policy raises", says="a fault of the matrix",
            inside="policy-raises"),
    replace(_LEARNED, name="bundle-nan", does="a bundle's network answers NaN above a load", says="not finite",
            act=_within_verdict(_tell(rps=320.0)), config=_learned("nan")),
    replace(_LEARNED, name="bundle-out-of-range", does="a bundle's network answers infinity above a load",
            says="not finite", act=_within_verdict(_tell(rps=320.0)), config=_learned("infinite")),
    replace(_LEARNED, name="bundle-hangs", does="a bundle's policy never answers", says="no answer within",
            inside="policy-hangs"),
    *(Case(f"write-{name.lower()}", f"every write to BE's knobs fails with {name}", _to_safe(_trigger, Promise.LEASE),
           name, _leave, inside=f"write-{name}", promise=Promise.LEASE, config=_grows) for name in WRITE),
    Case("cgroup-removed", "BE's group is removed", _within_verdict(Stage.remove_be), "group-vanished", _leave,
         promise=Promise.TICK),
    Case("cgroup-replaced", "BE's group is removed and made anew, busy and without limits",
         _within_verdict(Stage.replace_be, NOTICED_TICKS), "group-replaced|group-appeared", _leave,
         promise=Promise.TICK),
    Case("be-escapes", "a busy task of BE leaves its cpu and freezer groups", _to_safe(Stage.let_escape), "be-overrun",
         _leave, config=lambda stage: _STATIC, lacks=Stage.lacks_escape, escapes=True),
    Case("be-escapes-unseen", "the same, and its counter of CPU time is set back again and again",
         _to_safe(_escape_unseen), "be-overrun", _leave, config=lambda stage: _STATIC, lacks=Stage.lacks_escape,
         escapes=True, promise=Promise.RESETS),
    replace(_HELD, name="be-nests", does=f"{NESTED} control groups appear in BE's, one within another",
            says="latency-missing|too-few", act=_unchanged(lambda stage: stage.nest(NESTED)),
            config=lambda stage: _STATIC),
    Case("foreign-writer", f"another program sets BE free, {FOREIGN_WRITES} times", _foreign, "foreign-write: ", _leave,
         config=lambda stage: _STATIC, promise=Promise.TICK),
    Case("foreign-writer-in-step", f"the same, {STEPS} times soon after a tick", _foreign_in_step, "foreign-write: ",
         _leave, config=lambda stage: _STATIC, promise=Promise.TICK),
    replace(_HELD, name="wall-clock-jumps", does="the wall clock jumps by days, to and fro", inside=CLOCK,
            says=r"[+-]24 h off"),
    replace(_HELD, name="log-disk-full", does="the tick log is on a full disk", act=_unchanged(_fill_log),
            says="No space left on device", config=lambda stage: _STATIC),
    Case("controller-sigkill", "SIGKILL to the controller", _to_safe(_signal(signal.SIGKILL, _controller)),
         "has ended: BE goes to the safe allocation", _left_to_watchdog,
         promise=Promise.LEASE),
    Case("quota-hold-sigkill", "SIGKILL to the controller, and BE is held by quota, never frozen",
         _never_frozen(_to_safe(_signal(signal.SIGKILL, _controller))), "has ended: BE goes to the safe allocation",
         _left_to_watchdog, hold="quota", promise=Promise.LEASE),
    Case("controller-sigstop", "SIGSTOP to the controller", _to_safe(_signal(signal.SIGSTOP, _controller)),
         "has not renewed its lease", _left_to_successor, promise=Promise.LEASE),
    Case("watchdog-sigkill", "SIGKILL to the watchdog",
         _to_safe_once(_signal(signal.SIGKILL, lambda stage: stage.service.watchdog)), "was killed by signal", _leave,
         promise=Promise.TICK),
    Case("both-sigkill", "SIGKILL to both; the service is started again", _both_killed, "watchdog started", _leave,
         promise=Promise.RESTART),
    Case("state-elsewhere", "SIGKILL to both; started with another state directory, then with the first one again",
         lambda stage: _both_killed(stage, _start_elsewhere), "has the originals of", _leave,
         promise=Promise.RESTART),
    replace(_HELD, name="journal-removed", does="the journal of originals is removed", says="written anew",
            act=_unchanged(lambda stage: (stage.folder / "state" / JOURNAL).unlink())),
    replace(_HELD, name="config-garbage", does="the configuration becomes garbage, then SIGHUP", says="not reloaded",
            act=_unchanged(_garbage(lambda stage: stage.folder / "serve.yaml"))),
    replace(_HELD, name="bundle-garbage", does="weights.npz becomes garbage, then SIGHUP; later a restart",
            says="refused", act=_unchanged(_garbage(lambda stage: stage.folder / "bundle" / "weights.npz")),
            end=_starts_again, endpoint=True, config=_learned("grows")),
)  # fmt: skip
"""The matrix, in the order of issue 5."""

_ON_LINK = ("controller-sigkill", "controller-sigstop", "both-sigkill")
CASES += tuple(_with_link(case) for case in CASES if case.name in _ON_LINK)


def _break_and_stall(stage: Stage) -> None:
    _trigger(stage)
    stage.source.stall()


def _hold_up(trouble: Callable[[], object]) -> Callable[[Stage], Fault]:
    """The onlooker is in trouble, once, while nothing else is wrong."""

    def act(stage: Stage) -> Fault:
        at = time.monotonic()
        troubles = [trouble]
        stage.onlooker.hold_up = lambda: troubles and troubles.pop()()
        stage.watch(2.0)
        return Fault(at, at, None, time.monotonic())

    return act


def _die() -> None:
    raise RuntimeError("the matrix wants it so")


def _escape_and_stall(stage: Stage) -> None:
    stage.let_escape()
    stage.source.stall()


BROKEN: tuple[Case, ...] = (
    Case("freezer-does-nothing", "the freezer says that all have stopped, and writes nothing",
         _to_safe(_break_and_stall), "", _leave, inside=FREEZER),
    Case("watchdog-late", "SIGSTOP to the controller; the watchdog waits for 5 s more",
         _to_safe(_signal(signal.SIGSTOP, _controller)), "", _left_to_successor, promise=Promise.LEASE,
         config=lambda stage: {"watchdog": {"grace_seconds": 5.0 + stage.pace.grace_seconds}}),
    Case("escape-unguarded", "a task leaves its groups and runs while BE is held", _to_safe(_escape_and_stall), "",
         _leave, config=lambda stage: _STATIC, lacks=Stage.lacks_escape),
    Case("group-missing", "BE's group in the CPU hierarchy is removed, its tasks run on",
         _within_verdict(Stage.lose_group), "", _leave, lacks=Stage.lacks_escape),
    Case("onlooker-stalls", "who watches BE stands still for .6 s", _hold_up(lambda: time.sleep(0.6)), "", _leave),
    Case("onlooker-dies", "who watches BE ends", _hold_up(_die), "", _leave),
)  # fmt: skip
"""Services and onlookers that are broken: none of these may pass."""
