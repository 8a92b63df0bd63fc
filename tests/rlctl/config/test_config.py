"""The serve configuration: what is wrong is told in one line with its place, and what is in effect can be seen."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.cli import main
from rlctl.config.serve import ServeConfig, describe, load_config, schema
from rlctl.envs.errors import ConfigError
from rlctl.envs.host.discovery import ByCgroup, ByContainer, ByKubernetes, ByPid, ByUnit
from rlctl.serve.service import _tick_log
from tests.doubles.yaml_text import load_text

EXAMPLE = Path(__file__).parents[3] / "configs" / "serve" / "example.yaml"


def test_shipped_example_is_valid_and_says_every_section():
    config = load_config(EXAMPLE)
    assert config.model_fields_set == set(ServeConfig.model_fields)


def test_slo_reaches_loop_in_seconds_and_ratios(serve_yaml):
    slo = load_config(serve_yaml()).lc.slo
    assert slo.quantile_percent == 95.0
    assert (slo.slo.target_seconds, slo.slo.quantile, slo.slo.max_load_rps) == (0.010, 0.95, 480.0)


def test_shown_is_a_configuration_again(serve_yaml):
    for path in (EXAMPLE, serve_yaml()):
        config = load_config(path)
        assert load_text(ServeConfig, describe(config), "shown") == config


APPLICATIONS = "  applications: {group: /many, leftover: idle}\n", "  workloads:\n    - {kind: cgroup, path: /batch}\n"


def test_be_may_be_applications_that_share_a_group(serve_yaml):
    path = serve_yaml(APPLICATIONS[1], APPLICATIONS[0])
    config = load_config(path)
    assert (config.be.workloads, config.be.applications.group) == (None, "/many")
    assert load_text(ServeConfig, describe(config), "shown") == config


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (APPLICATIONS[0] + APPLICATIONS[1], 5, "either 'workloads' or 'applications'"),
        ("  applications: {group: /many/*}\n", 6, "is not a group below the root"),
        ("  applications: {groop: /many}\n", 6, "did you mean 'group'"),
        ("  applications: {leftover: some}\n", 6, "'share' or 'idle'"),
        ("  applications: {period_seconds: 0}\n", 6, "greater than or equal to 0.1"),
    ],
)
def test_slip_in_applications_is_told_with_its_line(serve_yaml, text, line, told):
    path = serve_yaml(APPLICATIONS[1], text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert told in str(caught.value)


def several(serve_yaml, names=("web", "cache")):
    """The test's file with its LC written as a list of two."""
    path = serve_yaml()
    lines = path.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("lc:"))
    end = next(number for number, line in enumerate(lines) if number > begin and not line.startswith(" "))
    one = [f"  {line}" for line in lines[begin + 1 : end]]
    lists = [line for name in names for line in (f"  - name: {name}", *one)]
    path.write_text("\n".join([*lines[:begin], "lc:", *lists, *lines[end:], ""]))
    return path


def test_each_of_several_lcs_has_its_slo(serve_yaml):
    config = load_config(several(serve_yaml))
    assert list(config.lcs) == ["web", "cache"]
    assert load_text(ServeConfig, describe(config), "shown") == config
    assert list(load_config(serve_yaml()).lcs) == ["lc"]


def test_two_lcs_of_one_name_are_refused(serve_yaml):
    with pytest.raises(ConfigError, match="two LCs have one name"):
        load_config(several(serve_yaml, ("web", "web")))


def test_slip_in_one_lc_is_told_with_line(serve_yaml):
    path = several(serve_yaml)
    text = path.read_text()
    place = text.rindex("target_milliseconds: 10")
    path.write_text(text[:place] + text[place:].replace("target_milliseconds: 10", "target_milliseconds: 0", 1))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:{text[:place].count(chr(10)) + 1}: lc.1.slo.target_milliseconds")


def test_defaults_are_marked_others_are_not(serve_yaml):
    lines = describe(load_config(serve_yaml())).splitlines()
    assert "tick_seconds: 1.0  # default" in lines
    assert "    target_milliseconds: 10.0" in lines
    assert '  name: "frozen"' in lines
    assert "log:  # default" in lines
    assert "fallback:  # default; a bundle that is refused at the start ends it all the same" in lines


def test_the_schema_names_every_kind_for_editors():
    text = json.dumps(schema())
    kinds = "cgroup unit pid container kubernetes tcp waiting prometheus http jsonl nginx-log text postgres"
    for kind in kinds.split():
        assert f'"const": "{kind}"' in text


SLO = "target_milliseconds: 10, max_load_rps: 480"


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("lc:", "lcc:", 1, "unknown key 'lcc'; did you mean 'lc'?"),
        ("max_load_rps", "max_load", 3, "did you mean 'max_load_rps'?"),
        ("target_milliseconds: 10", "target_milliseconds: ten", 3, "lc.slo.target_milliseconds is 'ten'"),
        (SLO, SLO + ", quantile_percent: 195", 3, "should be less than 100"),
        (SLO, SLO + ", quantile_percent: 100", 3, "should be less than 100"),
        (SLO, SLO + ", quantile_percent: 0.95", 3, "(a ratio? write 95)"),
        (SLO, SLO + ", quantile_percent: true", 3, "should be greater than or equal to 50"),
        ("target_milliseconds: 10", "target_milliseconds: -1", 3, "greater than 0"),
        ("target_milliseconds: 10", "target_milliseconds: .inf", 3, "lc.slo.target_milliseconds"),
        ("kind: nginx-log", "kind: apache", 4, "unknown kind 'apache' in lc.latency; known are "),
        ("kind: nginx-log", "kind: nginx", 4, "unknown kind 'nginx' in lc.latency; did you mean 'nginx-log'?"),
        ("{kind: cgroup, path: /web}", "{kind: cgroup, path: /../web}", 2, "is not a group below the root"),
        ("{kind: cgroup, path: /web}", "{kind: unit, unit: a b}", 2, "lc.workload.unit"),
        ("{kind: cgroup, path: /web}", "{kind: pid, pid: 1}", 2, "lc.workload.pid"),
        ("{kind: cgroup, path: /web}", "{kind: kubernetes}", 2, "needs one of 'pod', 'pod_uid' and 'qos'"),
        (
            "{kind: cgroup, path: /web}",
            "{kind: kubernetes, qos: burstable, pod_uid: 0a}",
            2,
            "one of 'pod', 'pod_uid' and 'qos'",
        ),
        (
            "{kind: cgroup, path: /web}",
            "{kind: kubernetes, qos: burstable, container_id: 0a}",
            2,
            "goes with 'pod_uid'",
        ),
        ("{kind: cgroup, path: /web}", "{kind: kubernetes, each_pod: true, pod_uid: 0a}", 2, "goes with 'qos'"),
        ("{kind: cgroup, path: /web}", "{kind: cgroup, path: /batch}", None, "name the best-effort work only"),
        ("  workloads:\n    - {kind: cgroup, path: /batch}", "  workloads: []", 6, "at least 1 item"),
        ("be:\n", "be:\n  cpus: [0, 1, 0]\n", 6, "names a CPU twice"),
        ("be:\n", "be:\n  cpus: 3-1\n", 6, "no list of CPUs"),
        ("be:\n", "be:\n  min_quota_cpus: 0\n", 6, "greater than or equal to 0.001"),
        ("lc:", "tick_seconds: 0\nlc:", 1, "tick_seconds"),
        ("policy: {name: frozen}", "policy: frozen", 8, "policy is 'frozen': write policy: {name: frozen}"),
        ("lc:", "watchdog: false\nlc:", 1, "watchdog is False: write watchdog: {enabled: false}"),
        (f"{{{SLO}}}", "10", 3, "lc.slo is 10: needs keys below it, such as target_milliseconds, quantile_percent, "),
        ("{kind: cgroup, path: /web}", "nginx", 2, "lc.workload is 'nginx': needs keys below it, such as kind"),
        ("workloads:\n    - {kind: cgroup, path: /batch}", "workloads: batch", 6, "is 'batch': should be a list"),
        (
            "{kind: nginx-log, path: /nowhere/access.log}",
            "{kind: prometheus, url: 'localhost:9113', histogram: h}",
            4,
            "lc.latency.url: 'localhost:9113' is not an http or https URL, such as http://127.0.0.1:8080/metrics",
        ),
        (
            "{kind: nginx-log, path: /nowhere/access.log}",
            "{kind: prometheus, url: 'http://h/', histogram: h, errors: requests_total}",
            4,
            "'errors', a counter of requests, and 'error_labels', which of them failed, go together",
        ),
        (
            "{kind: nginx-log, path: /nowhere/access.log}",
            "{kind: prometheus, url: 'http://h/', histogram: h, errors: n, error_labels: {code: '5(.'}}",
            4,
            "lc.latency.error_labels.code: '5(.' is not a valid regular expression: ",
        ),
        (
            "{kind: nginx-log, path: /nowhere/access.log}",
            "{kind: redis, address: 'localhost:6379'}",
            4,
            "'lc.latency.kind: redis' was removed: use `kind: prometheus` with an exporter",
        ),
    ],
)
def test_a_slip_is_told_with_its_line(serve_yaml, old, new, line, told):
    path = serve_yaml(old, new)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert told in message
    assert "\n" not in message
    assert message.startswith(f"{path}:{line}: " if line else f"{path}:")


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-2,5", (0, 1, 2, 5)), ("3", (3,)), ("[2, 0, 1]", (2, 0, 1)), ("2,0-1", (2, 0, 1))]
)
def test_cpus_keep_bes_order(serve_yaml, text, cpus):
    assert load_config(serve_yaml("be:\n", f"be:\n  cpus: {text}\n")).be.cpus == cpus


KINDS = {
    "{kind: cgroup, path: /a}": ByCgroup(path="/a"),
    "{kind: unit, unit: nginx}": ByUnit(unit="nginx"),
    "{kind: pid, pid: 42}": ByPid(pid=42),
    "{kind: container, name: web}": ByContainer(name="web"),
    "{kind: kubernetes, pod_uid: 0a-1b}": ByKubernetes(pod_uid="0a-1b"),
    "{kind: kubernetes, pod_uid: 0a-1b, container_id: ff}": ByKubernetes(pod_uid="0a-1b", container_id="ff"),
    "{kind: kubernetes, qos: burstable, each_pod: true}": ByKubernetes(qos="burstable", each_pod=True),
}


@pytest.mark.parametrize(("text", "spec"), KINDS.items())
def test_every_kind_of_workload_is_found_by_discovery(serve_yaml, text, spec):
    found = load_config(serve_yaml("{kind: cgroup, path: /web}", text)).lc.workload
    assert isinstance(found, type(spec))
    assert found.model_dump(exclude={"kind"}) == spec.model_dump()


plain = st.none() | st.booleans() | st.floats() | st.text(max_size=8)
nested = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner), max_leaves=8)


@given(nested)
def test_whatever_stands_in_file_user_gets_one_line(value):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file, contextlib.redirect_stderr(io.StringIO()) as err:
        json.dump({"lc": value}, file)
        file.flush()
        assert main(["config", "show", file.name]) == 78
    assert err.getvalue().startswith(f"rlctl: error: {file.name}")
    assert err.getvalue().count("\n") == 1


@pytest.mark.parametrize("place", ["/proc/nix", "/dev/null/log"])
def test_impossible_log_directory_names_its_key(serve_yaml, place):
    config = load_config(serve_yaml("lc:", f"log: {{directory: {place}}}\nlc:"))
    with pytest.raises(ConfigError, match=rf"^log.directory: {place}: No.* directory: name another$"):
        _tick_log(config.log)
