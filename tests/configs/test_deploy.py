"""What ships for operators: every file loads where it is meant to, and names only what rlctl has."""

import configparser
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from rlctl.cli import _parser
from rlctl.config.sections import LimitsSection
from rlctl.envs.allocation import Limits
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.telemetry import READINGS, Telemetry, Value
from rlctl.log.record import Tick
from rlctl.safety.verdict import Bound, Reason, Verdict
from rlctl.serve.budget import ErrorBudget
from rlctl.serve.metrics import Metrics, ServiceFigures
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "configs/deploy"
UNITS = ("rlctl.service", "rlctl-restore.service", "rlctl-shadow.service", "rlctl.slice")
ALERTS = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
SAFE = Limits(2).safe


def needs(tool):
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


EVERYTHING = Telemetry(1.0, 0.01, **dict.fromkeys(READINGS, Value(0.5)))


def ticked():
    """Metrics of a controller that has seen all there is, and nothing."""
    metrics = Metrics(
        "ppo", ("responsive", "0a"), Limits(2), 1.0, service=ServiceFigures(budgets=(ErrorBudget("web", 0.01, 1.0),))
    )
    verdict = Verdict(SAFE, Limits(2).full, (Bound("ceiling", Reason.CEILING, SAFE),))
    for telemetry in (Telemetry(1.0, 0.01), EVERYTHING):
        metrics.write(Tick(0, 1e9, telemetry, SAFE, verdict.proposed, verdict, SAFE, "ppo"))
    return metrics


@pytest.fixture(scope="module")
def exposed():
    """Labels of every metric, by the name in the exposition."""
    found = {}
    for family in ticked().collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions():
    for rule in ALERTS:
        yield rule["expr"]
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_dashboard_and_alerts_name_existing_metrics(exposed, expression):
    named = re.findall(r"\b(rlctl_\w+)\b(?:\{([^}]*)\})?", expression)
    assert named or expression.startswith("up{")
    scraped = {"job", "instance"}
    for name, selector in named:
        assert name in exposed, name
        assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", selector)) <= exposed[name] | scraped
    grouped = ",".join(re.findall(r"(?:by|without) \(([^)]*)\)", expression))
    everywhere = set().union(*(exposed[name] for name, _ in named)) | scraped
    assert set(re.findall(r"\w+", grouped)) <= everywhere


def test_variables_of_dashboard_ask_for_what_there_is(exposed):
    source, *queries = DASHBOARD["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    for variable in queries:
        metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"]).groups()
        assert metric in exposed
        assert label in ("job", "instance")


def test_dashboard_overlaps_nowhere_and_asks_chosen_source():
    panels = DASHBOARD["panels"]
    assert DASHBOARD["schemaVersion"] >= 39
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        for asked in (panel, *panel.get("targets", ())) if panel["type"] != "row" else ():
            assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_every_alert_says_what_to_do():
    named = {rule["alert"] for rule in ALERTS}
    assert len(named) == len(ALERTS)
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]


RULE_TESTS = """\
rule_files: [{rules}]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - {{series: 'rlctl_ticks_total{{instance="a", job="rlctl", slo="met"}}', values: '0+8x80'}}
      - {{series: 'rlctl_ticks_total{{instance="a", job="rlctl", slo="missed"}}', values: '0+7x80'}}
      - {{series: 'rlctl_ticks_total{{instance="b", job="rlctl", slo="met"}}', values: '0+15x80'}}
      - {{series: 'rlctl_ticks_total{{instance="b", job="rlctl", slo="missed"}}', values: '0x80'}}
      - {{series: 'rlctl_write_errors_total{{instance="a", job="rlctl"}}', values: '0x20 1x60'}}
      - {{series: 'rlctl_last_tick_age_seconds{{instance="a", job="rlctl"}}', values: '0.5x20 1+15x60'}}
      - {{series: 'rlctl_tick_period_seconds{{instance="a", job="rlctl"}}', values: '1x80'}}
      - {{series: 'rlctl_shield_overrides_total{{instance="b", job="rlctl"}}', values: '0+12x200'}}
      - {{series: 'rlctl_fallback_active{{instance="b", job="rlctl"}}', values: '0x20 1x60'}}
      - {{series: 'rlctl_ticks_total{{instance="c", job="rlctl", slo="unknown"}}', values: '0+15x80'}}
      - {{series: 'rlctl_be_starved{{instance="c", job="rlctl"}}', values: '1x200'}}
      - {{series: 'up{{instance="c", job="rlctl"}}', values: '1x20 0x60'}}
      - {{series: 'rlctl_policy_errors_total{{instance="b", job="rlctl"}}', values: '0x80'}}
      - {{series: 'rlctl_tick_errors_total{{instance="b", job="rlctl"}}', values: '0x20 1x60'}}
      - {{series: 'rlctl_host_events_total{{instance="a", job="rlctl", kind="group-appeared"}}', values: '0x10 1x70'}}
      - {{series: 'rlctl_host_events_total{{instance="a", job="rlctl", kind="foreign-write"}}', values: '0x20 3x60'}}
      - series: 'rlctl_shield_bounds_total{{instance="a", job="rlctl", guard="overrun", reason="be-overrun"}}'
        values: '0x20 3x60'
      - series: 'rlctl_shield_bounds_total{{instance="b", job="rlctl", guard="ceiling", reason="ceiling"}}'
        values: '0+3x80'
      - {{series: 'rlctl_watchdog_restarts_total{{instance="a", job="rlctl"}}', values: '0x20 1x60'}}
      - series: 'rlctl_error_budget_burn_rate{{instance="a", job="rlctl", lc="web", window="1h"}}'
        values: '1x20 7x60'
      - {{series: 'rlctl_error_budget_remaining_ratio{{instance="b", job="rlctl", lc="web"}}', values: '.1x20 0x60'}}
      - {{series: 'rlctl_log_records_dropped_total{{instance="a", job="rlctl"}}', values: '0x20 1+1x60'}}
      - {{series: 'rlctl_start_time_seconds{{instance="d", job="rlctl"}}', values: '1x3 60x3 120x3 180x3'}}
    alert_rule_test:
{alerts}
"""

ALERTED = """\
      - eval_time: {at}
        alertname: {name}
        exp_alerts: [{alerts}]
"""


@needs("promtool")
@pytest.mark.parametrize(
    ("name", "quiet_at", "fires_at", "severity", "instance"),
    [
        ("RlctlSloMissed", None, "10m", "critical", "a"),
        ("RlctlWriteErrors", "4m", "7m", "critical", "a"),
        ("RlctlStale", "5m", "8m", "critical", "a"),
        ("RlctlRestarts", "2m", "5m", "critical", "d"),
        ("RlctlPolicyDemoted", "6m", "20m", "warning", "b"),
        ("RlctlBeOverrun", "4m", "7m", "critical", "a"),
        ("RlctlErrorBudgetBurns", "4m", "8m", "warning", "a, lc: web"),
        ("RlctlErrorBudgetSpent", "4m", "8m", "critical", "b, lc: web"),
        ("RlctlForeignWriter", "4m", "7m", "warning", "a, kind: foreign-write"),
        ("RlctlLatencyUnknown", "4m", "12m", "warning", "c"),
        ("RlctlBeStarved", "4m", "36m", "warning", "c"),
        ("RlctlDown", "6m", "8m", "critical", "c"),
        ("RlctlShieldOverridesMuch", "10m", "19m", "warning", "b"),
        ("RlctlPolicyErrors", "4m", "7m", "warning", "b"),
        ("RlctlWatchdogRestarted", "4m", "7m", "warning", "a"),
        ("RlctlLogRecordsDropped", "4m", "7m", "warning", "a"),
    ],
)
def test_alerts_fire_when_they_should_and_only_then(tmp_path, name, quiet_at, fires_at, severity, instance):
    """With annotations taken out: promtool wants them word for word."""
    rules = [{key: value for key, value in rule.items() if key != "annotations"} for rule in ALERTS]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "rlctl", "rules": rules}]}))
    told = f"{{exp_labels: {{severity: {severity}, job: rlctl, instance: {instance}}}}}"
    alerts = ALERTED.format(at=fires_at, name=name, alerts=told)
    if quiet_at is not None:
        alerts += ALERTED.format(at=quiet_at, name=name, alerts="")
    (tmp_path / "test.yaml").write_text(RULE_TESTS.format(rules="rules.yaml", alerts=alerts))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs("promtool")
def test_promtool_takes_the_metrics():
    text = generate_latest(ticked())
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@needs("promtool")
def test_promtool_takes_the_rules():
    subprocess.run(["promtool", "check", "rules", DEPLOY / "alerts.yaml"], capture_output=True, check=True)


def unit(name):
    """A unit file; no key is given twice in those that ship."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read_string((DEPLOY / name).read_text())
    return parser


def test_service_may_write_control_groups_and_little_else():
    service = unit("rlctl.service")["Service"]
    assert (service["Type"], service["NoNewPrivileges"], service["ProtectSystem"]) == ("notify", "yes", "strict")
    assert service["ProtectControlGroups"] == "no"
    assert service["ReadWritePaths"] == "/sys/fs/cgroup -/sys/fs/resctrl"  # the latter where it is mounted
    assert float(service["WatchdogSec"]) >= 3.0  # ticks of the default period
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert not {"ProtectProc", "PrivateUsers", "ProcSubset"} & set(service)  # LC and BE must stay visible
    assert "RestrictRealtime" not in service  # or the watchdog waits behind BE


def test_nothing_frees_be_between_crash_and_restart():
    service = unit("rlctl.service")
    assert service["Service"]["KillMode"] == "process"
    assert "ExecStopPost" not in service["Service"]
    assert service["Service"]["RestartPreventExitStatus"] == "2 77 78"  # what no retry heals
    assert float(service["Service"]["RestartSec"]) < 30.0  # the watchdog waits so long for a successor
    assert service["Unit"]["OnFailure"] == "rlctl-restore.service"
    assert " restore " in unit("rlctl-restore.service")["Service"]["ExecStart"]


@pytest.mark.parametrize(
    ("state", "restores"),
    [("failed", True), ("inactive", True), ("activating", False), ("active", False), ("", False)],
)
def test_starts_after_crash_free_nobody_before_successor(tmp_path, state, restores):
    """OnFailure= comes with every crash since systemd 254; `activating` is the wait for RestartSec= too."""
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\n[ "$*" = "show -P ActiveState rlctl.service" ] && echo {state}\n')
    (tmp_path / "systemctl").chmod(0o755)
    command = shlex.split(unit("rlctl-restore.service")["Service"]["ExecCondition"].replace("$$", "$"))
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
    assert (done.returncode == 0) is restores


def test_whoever_removes_rlctl_removes_every_unit():
    page = (ROOT / "docs/howto/systemd.md").read_text().partition("## Remove")[2]
    assert not [name for name in UNITS if name not in page]


def test_shadows_take_and_touch_nothing():
    service = unit("rlctl-shadow.service")["Service"]
    assert "Slice" not in service, "what counts against rlctl.slice counts against the controller"
    assert (service["Nice"], service["CPUSchedulingPolicy"], service["OOMScoreAdjust"]) == ("19", "idle", "1000")
    assert {"CPUQuota", "MemoryMax", "TasksMax"} <= set(service)
    assert (service["CapabilityBoundingSet"], service["ProtectControlGroups"], service["DynamicUser"]) == (
        "",
        "yes",
        "yes",
    )
    assert "ReadWritePaths" not in service
    assert service["RestartPreventExitStatus"] == "2 77 78"


def test_command_of_shadows_is_one_that_rlctl_takes(tmp_path):
    service = unit("rlctl-shadow.service")["Service"]
    given = dict(pair.strip('"').split("=", 1) for pair in service["Environment"].split())
    words = re.sub(r"\$\{(\w+)\}", lambda found: given[found[1]], service["ExecStart"]).split()[1:]
    args = _parser(words).parse_args(words)
    assert (args.action, args.policy, args.log) == ("watch", ["ppo"], Path("/var/log/rlctl"))
    assert args.out.parent == Path("/var/log") / service["LogsDirectory"]


def test_bounds_from_outside_leave_rlctl_room():
    memory = unit("rlctl.slice")["Slice"]
    megabytes = {key: int(memory[key].removesuffix("M")) for key in ("MemoryMin", "MemoryHigh", "MemoryMax")}
    warned = LimitsSection().warn_resident_bytes >> 20
    assert megabytes["MemoryMin"] < warned < megabytes["MemoryHigh"] < megabytes["MemoryMax"]


@pytest.fixture
def installed_units(tmp_path):
    """The units, of a program that there is."""
    for name in UNITS:
        (tmp_path / name).write_text((DEPLOY / name).read_text().replace("/opt/rlctl/bin/rlctl", "/bin/true"))
    return tmp_path


@needs("systemd-analyze")
def test_systemd_takes_the_units(installed_units):
    units = [installed_units / name for name in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if str(installed_units) in line]
    assert (done.returncode, said) == (0, [])


@needs("systemd-analyze")
def test_exposure_stays_where_it_is(installed_units):
    """3.1, 1.7 and 0.8 of 10 with systemd 252; left is root, the network, the LC's sockets, and control groups."""
    for name, most in (("rlctl.service", 3.2), ("rlctl-restore.service", 2.0), ("rlctl-shadow.service", 1.0)):
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", installed_units / name],
            capture_output=True, text=True, check=False, env={**os.environ, "SYSTEMD_PAGER": "cat"},
        )  # fmt: skip
        score = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
        if score is None:
            pytest.skip("this systemd-analyze does not judge files")
        assert float(score[1]) <= most


WRITE_ALL = """
import sys
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.values import Quota
group = Group.open(Layout.detect(), sys.argv[1], Knobs(None))
if group.cpu:
    group.cpu.set_quota(Quota(5000, 10000))
if group.cpuset:
    group.cpuset.set_cpus(group.cpuset.effective())
if group.freezer:
    group.freezer.order(True)
    group.freezer.order(False)
print(open("/proc/self/status").read().split("CapEff:")[1].split()[0])
"""


@pytest.mark.host
@needs("setpriv")
def test_root_writes_groups_with_the_units_capabilities():
    layout = Layout.detect()
    if (
        os.geteuid() != 0
        or CgroupController.CPU not in layout.mounts
        or not layout.mounts[CgroupController.CPU].writable
    ):
        pytest.skip("needs root and a cpu hierarchy that can be written")
    kept = [
        name.removeprefix("CAP_").lower() for name in unit("rlctl.service")["Service"]["CapabilityBoundingSet"].split()
    ]
    bounds = ",".join(["-all", *(f"+{name}" for name in kept)])
    group = Group.create(layout, f"rlctl-test-{os.getpid()}-deploy", Knobs(None))
    try:
        done = subprocess.run(
            ["setpriv", f"--bounding-set={bounds}", f"--inh-caps={bounds}", "--no-new-privs",
             sys.executable, "-c", WRITE_ALL, group.name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        group.remove()
    if "not supported" in done.stderr or "unknown capability" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout, 16).bit_count() == len(kept)


def test_the_image_serves_and_does_not_train():
    text = (DEPLOY / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line.split()[1] for line in lines if line.startswith("FROM")] == ["python:3.11-slim"] * 2
    assert not re.search(r"\[[a-z,]*train|pip install.*torch", text)
    for line in lines:
        words = [word for word in line.split() if not word.startswith("--")]
        if words[0] == "COPY" and "--from=build" not in line:
            assert all((ROOT / source).exists() for source in words[1:-1]), line
    assert os.access(DEPLOY / "supervise", os.X_OK)


class Supervised:
    """`supervise` over a stand-in for rlctl that does what `script` says and keeps a diary."""

    def __init__(self, folder, script):
        self.diary = folder / "diary"
        program = folder / "rlctl"
        program.write_text(f'#!/bin/sh\nsay() {{ echo "$*" >>{self.diary}; }}\nsay "$@"\n{script}\n')
        program.chmod(0o755)
        self.process = subprocess.Popen(
            [DEPLOY / "supervise", "--config", "x"],
            env={"PATH": f"{folder}:{os.environ['PATH']}"},
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which nohup has us ignore
        )

    def wait_for(self, line, times=1):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            lines = self.diary.read_text().splitlines() if self.diary.exists() else []
            if lines.count(line) >= times:
                return
            time.sleep(0.01)
        raise AssertionError(f"{line!r} is not among {lines}")

    def ended(self):
        said = self.process.communicate(timeout=PATIENCE_SECONDS)[1].decode()
        return self.process.returncode, said


@pytest.fixture
def supervised(tmp_path):
    running = []

    def start(script):
        running.append(Supervised(tmp_path, script))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
        one.process.communicate(timeout=PATIENCE_SECONDS)


LIVES = "trap 'say term; exit 0' TERM; trap 'say hup' HUP; say ready; while :; do sleep 0.05; done"


def test_killed_controller_is_started_beside_its_watchdog(supervised, tmp_path):
    container = supervised(f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; kill -KILL $$; }}\n{LIVES}")
    container.wait_for("serve --config x", times=2)
    container.wait_for("ready")
    container.process.send_signal(signal.SIGTERM)
    code, said = container.ended()
    assert code == 0
    assert "rlctl ended with exit code 137; starting it again in 1 s" in said


def test_signals_reach_controller_and_only_term_ends_it(supervised):
    container = supervised(LIVES)
    container.wait_for("ready")
    container.process.send_signal(signal.SIGHUP)
    container.wait_for("hup")
    container.process.send_signal(signal.SIGTERM)
    container.wait_for("term")
    assert container.ended()[0] == 0
    assert container.diary.read_text().count("serve") == 1


@pytest.mark.parametrize("code", [0, 2, 77, 78])
def test_what_no_retry_heals_ends_the_container(supervised, code):
    container = supervised(f"exit {code}")
    assert container.ended()[0] == code
    assert ("restore --state /var/lib/rlctl" in container.diary.read_text()) == bool(code)


def test_stop_before_a_restart_is_heard(supervised):
    container = supervised("exit 75")
    container.wait_for("serve --config x")
    assert b"starting it again" in container.process.stderr.readline()
    container.process.send_signal(signal.SIGTERM)
    assert container.ended()[0] == 75
    container.wait_for("restore --state /var/lib/rlctl")
