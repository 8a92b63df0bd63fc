"""Serve configurations, shield profiles, scenarios and host profiles, as an operator's editor may leave them.

Whatever stands there, it is refused in one line or taken; nothing in it is run. What is taken restricts BE as it must:
a shield gives BE the safe allocation without telemetry and no growth on negative slack, whatever its constants, and
limits, lease and objective are numbers that can be.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from hypothesis import strategies as st

from rlctl.bench.scenarios import load_scenario
from rlctl.config.serve import load_config
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import RlctlError
from rlctl.envs.sim.profile import load_profile as load_plant
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.fuzz import inputs
from tests.fuzz.commands import run
from tests.fuzz.engine import Case, Target, refusal
from tests.fuzz.watch import ROOT, guarded

_LC = """\
lc:
  workload: {kind: %s}
  slo: {target_milliseconds: 10, max_load_rps: 480}
  latency: {kind: %s}
  cpus: [0]
be:
  workloads: [{kind: cgroup, path: /batch}]
  cpus: 0-1
"""
_WORKLOADS = ("cgroup, path: /web", "unit, unit: nginx.service", "pid, pid: 12", "container, name: web",
              "kubernetes, qos: burstable", "kubernetes, pod_uid: 0a1b, container_id: 0f")  # fmt: skip
_LATENCIES = (
    "nginx-log, path: /log", "jsonl, path: /log, latency: ms, unit: milliseconds", "http, url: 'http://h/', tail: a.b, "
    "done_rps: rate", "prometheus, url: 'http://h/metrics', histogram: seconds, labels: {a: b}",
    "postgres, path: /log, one_in: 10",
)  # fmt: skip
_SECTIONS = (
    "policy: {name: static, options: {share: 0.5}}\n",
    "policy: {name: ppo}\nfallback: {name: frozen, hold_seconds: 9}\n",
    "shield: knee\ntick_seconds: 0.5\nquota_period_milliseconds: 20\n", "ownership: {foreign: yield}\nperf: true\n",
    "watchdog: {grace_seconds: 0.7}\nlog: {directory: /l, rotate_bytes: 65536, keep: 2}\n",
    "metrics: {listen: '127.0.0.1:9842'}\nlimits: {memory_bytes: 536870912}\nstate_directory: /s\n",
)  # fmt: skip
SERVE = tuple(
    (_LC % (_WORKLOADS[n % 6], _LATENCIES[n]) + _SECTIONS[n % 6] + (_SECTIONS[n - 2] if n > 2 else "")).encode()
    for n in range(len(_LATENCIES))
)


def _shipped(folder: str, *names: str) -> tuple[bytes, ...]:
    """Without comments, which cost the parser time."""
    texts = [(ROOT / "configs" / folder / f"{name}.yaml").read_text() for name in names]
    return tuple("".join(f"{line}\n" for line in text.split("\n") if line[:1] != "#").encode() for text in texts)


CORPUS = {
    "serve": SERVE,
    "shield": _shipped("safety", "heracles", "measured"),
    "scenario": _shipped("scenarios", "bursty", "live-nginx", "thesis-shuffled", "diurnal"),
    "plant": _shipped("plants", "thesis-host"),
}
TOKENS = tuple(
    b"!!int ''|!!float ''|!!timestamp x|!!bool x|!!null x|!!python/object/apply:os.system ['touch canary']"
    b"|!!python/name:os.system|!!python/object/new:os.system [x]|&a [*a]|*a|<<: {a: 1}|<<|? {a: b}|!!binary /w=="
    b"|!!set {a}|!!omap [a: 1]|!!pairs [a: 1]|---|...|%YAML 1.1|'\\0'|\"\\0\"|\"\\ud800\"|\"\\e[31m\"|- |#"
    b"|kind: |{kind: steps, rates: [1]|{kind: csv_replay, path: 5}"
    b"|{kind: csv_replay, path: /dev/zero}|/dev/zero|1e999|0x1p3|0o7|+.inf|-.inf|190:20:30"
    b"|2001-12-14|2001-12-14t21:59:43.10-05:00|host|sim|ppo|frozen|heracles|kubernetes|prometheus|equal|yield".split(b"|")
)  # fmt: skip
COMMANDS = (("config", "check"), ("config", "show"), ("config", "show", "--json"))

_kinds = st.sampled_from(["serve", "serve", "serve", "shield", "scenario", "plant"])


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    kind = draw(_kinds)
    if draw(st.integers(0, 3)):
        text = draw(inputs.texts(CORPUS[kind], TOKENS))
    else:
        document = draw(_ALTERED[kind])
        text = json.dumps(document).encode()
    return {"kind": kind.encode(), "text": text, "how": str(draw(st.integers(0, len(COMMANDS)))).encode()}


_ALTERED = {
    kind: inputs.altered([yaml.safe_load(one) for one in corpus], inputs.VALUES) for kind, corpus in CORPUS.items()
}


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Callable[[Case], str]]:
    """One file, of whatever kind."""
    path = folder / "given.yaml"
    for text, command in itertools.product(SERVE, COMMANDS):  # all imports that a section may need
        path.write_bytes(text)
        run([*command, str(path)])

    def check(case: Case) -> str:
        path.write_bytes(case["text"])
        kind, how = case["kind"].decode(), int(case["how"])
        with guarded(folder, reads="/"):
            outcome = (
                run([*COMMANDS[how], str(path)]) if kind == "serve" and how < len(COMMANDS) else _taken(kind, path)
            )
        assert sorted(folder.iterdir()) == sorted({path, folder / "current.json"} & set(folder.iterdir())), "a canary"
        return outcome if outcome == "accepted" else f"{kind} {outcome}"

    yield check


def _taken(kind: str, path: Path) -> str:
    try:
        _SOUND[kind](path)
    except RlctlError as error:
        return refusal(error)
    return "accepted"


def _serve(path: Path) -> None:
    config = load_config(path)
    slo = next(iter(config.lcs.values())).slo.slo
    cpus = len(config.be.cpus or (0, 1))
    limits = Limits(cpus, 1.0, config.be.min_quota_cpus, config.be.quota_levels)
    assert limits.safe.frozen
    assert slo.max_load_rps > 0.0  # infinite where it is to be learned
    numbers = (slo.target_seconds, config.watchdog.lease_seconds(config.tick_seconds))
    assert all(math.isfinite(number) and number > 0.0 for number in numbers)
    assert all(0.0 < number < 1e6 for number in (config.tick_seconds, config.fallback.answer_within(1.0)))


def _shield(path: Path) -> None:
    limits = Limits(cpus=4)
    shield = Shield(load_profile(path), limits)
    assert shield.rule(Telemetry(0.0, 0.01), limits.full, limits.full).allocation.at_most(limits.safe)
    bad = Telemetry(1.0, 0.01, Quantile(0.02, 0.0, 10**9, 1.0), load_ratio=Value(0.1))
    assert shield.rule(bad, limits.full, limits.full).allocation.at_most(limits.minimum)
    for gone_wrong in (float("nan"), -1.0, float("inf")):
        odd = Telemetry(2.0, 0.01, Quantile(gone_wrong, 0.0, 10**9, 1.0), load_ratio=Value(gone_wrong))
        assert shield.rule(odd, limits.full, limits.full).allocation.at_most(limits.safe)


def _scenario(path: Path) -> None:
    scenario = load_scenario(str(path))
    if isinstance(scenario, LiveScenario):
        scenario.service()
        shares = [scenario.trace.rate(t) for t in (0.0, 0.5, 1e5)]
        assert all(0.0 <= share < math.inf for share in shares)
        assert math.isfinite(scenario.duration_seconds / scenario.tick_seconds)
        return
    scenario.host()
    assert scenario.ticks >= 0
    assert scenario.load_model is not None


def _plant(path: Path) -> None:
    profile = load_plant(str(path))
    for name, value in profile.values().items():  # only a link that is not there has no bound
        assert math.isfinite(value) or (value == math.inf and name.startswith("link_")), name
    profile.limits()


_SOUND: dict[str, Callable[[Path], None]] = {
    "serve": _serve, "shield": _shield, "scenario": _scenario, "plant": _plant,
}  # fmt: skip

TARGET = Target("configuration", _cases(), opened)
