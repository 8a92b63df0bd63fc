"""A pod of BE that starves goes elsewhere: one, the newest, within a budget, by calls that the Kubernetes API has."""

import copy
import json
import os
import socket
import ssl
import subprocess
import sys

import pytest

from rlctl.cli import main
from rlctl.config.serve import load_config
from rlctl.envs.errors import CheckFailed, ConfigError, HostError, PermissionMissing
from rlctl.envs.host.cgroup.layout import Controller, Layout, Mount
from rlctl.handoff import api as api_module
from rlctl.handoff import hand_off as module
from rlctl.handoff.api import Api, Declined, secret
from rlctl.handoff.budget import FILE, Budget
from rlctl.handoff.hand_off import BECAUSE, STARVED, Asked, be_pods, hand_off, keep
from tests.doubles.clock import Clock
from tests.rlctl.handoff.published import CORE, META, Published
from tests.rlctl.handoff.recording import SUCCESS, RecordingApi, failure, pod, uid_of
from tests.waiting import PATIENCE_SECONDS

PODS = (pod("old", 1), pod("new", 30), pod("middle", 20))
VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."


@pytest.fixture(scope="module")
def published():
    return Published()


@pytest.fixture
def server(published):
    """A server with three pods of BE; every call that came is one that Kubernetes publishes."""
    recording = RecordingApi(PODS)
    yield recording
    recording.close()
    for call in recording.calls:
        published.check_call(call)


@pytest.fixture
def kube(server):
    return Api("127.0.0.1", server.port, "a-token", None)


@pytest.fixture
def clock():
    return Clock(1e9)


@pytest.fixture
def budget(tmp_path, clock):
    return Budget(tmp_path / "state", 1, clock)


def asked(names=("old", "new", "middle"), **more):
    uids = frozenset(uid_of(name) for name in names)
    return Asked(**{"uids": uids, "node": "worker-7", "namespaces": ("batch",), "selector": "rlctl.io/be=true"} | more)


def methods(server):
    return [call.method for call in server.calls]


def test_the_newest_pod_is_labelled_and_evicted(server, kube, budget):
    outcome = hand_off(kube, budget, asked(because="load-high"))
    assert (outcome.did, outcome.pod, outcome.left) == ("evicted", "batch/new", 0)
    assert outcome.text == "batch/new is labelled rlctl.io/starved=true and evicted; 0 more within this hour"
    listed, labelled, evicted = server.calls
    assert (listed.method, listed.path) == ("GET", "/api/v1/namespaces/batch/pods")
    assert listed.query == {"fieldSelector": "spec.nodeName=worker-7", "labelSelector": "rlctl.io/be=true"}
    assert listed.headers["Authorization"] == "Bearer a-token"
    assert (labelled.method, labelled.path) == ("PATCH", "/api/v1/namespaces/batch/pods/new")
    assert labelled.headers["Content-Type"] == "application/merge-patch+json"
    metadata = {"uid": uid_of("new"), "labels": {STARVED: "true"}, "annotations": {BECAUSE: "load-high"}}
    assert labelled.body == {"metadata": metadata}
    assert (evicted.method, evicted.path) == ("POST", "/api/v1/namespaces/batch/pods/new/eviction")
    assert (evicted.body["apiVersion"], evicted.body["kind"]) == ("policy/v1", "Eviction")
    assert evicted.body["deleteOptions"]["preconditions"] == {"uid": uid_of("new")}, "no later pod of this name"


def test_what_the_server_of_these_tests_says_is_what_kubernetes_publishes(published, server, kube):
    kube.pods("batch", "worker-7", "rlctl.io/be=true")
    published.check_object(f"{CORE}PodList", server.answer(server.calls[0])[1])
    for status in (SUCCESS, failure(429, VIOLATES)):
        published.check_object(f"{META}Status", status)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [({"path": "/api/v1/pods/evictions"}, "has no POST"), ({"query": {"dry": "All"}}, "no parameter dry"),
     ({"body": {"kind": "Eviction", "pod": "new"}}, "'pod' was unexpected")],
)  # fmt: skip
def test_the_schema_would_refuse_what_is_not_published(published, server, kube, change, wrong):
    """What a check never refuses shows nothing."""
    kube.evict(api_module.Pod("batch", "new", "1"))
    with pytest.raises(AssertionError, match=wrong):
        published.check_call(type(server.calls[0])(**(vars(server.calls[0]) | change)))


def test_label_only_leaves_the_eviction_to_others_and_goes_on_with_the_next(server, kube, tmp_path):
    budget = Budget(tmp_path, 5)
    done = [hand_off(kube, budget, asked(label_only=True)) for _ in range(3)]
    assert [one.pod for one in done] == ["batch/new", "batch/middle", "batch/old"]
    assert {one.did for one in done} == {"labelled"}
    assert methods(server) == ["GET", "PATCH"] * 3
    with pytest.raises(CheckFailed, match=r"each of the 3 pods of BE .* has the label rlctl.io/starved already"):
        hand_off(kube, budget, asked(label_only=True))


def test_a_dry_run_has_the_server_try_it_and_spends_nothing(server, kube, budget):
    outcome = hand_off(kube, budget, asked(dry_run=True))
    assert outcome.text == "batch/new would be labelled rlctl.io/starved=true and evicted; 1 more within this hour"
    assert [call.query.get("dryRun") for call in server.calls] == [None, "All", "All"]
    assert STARVED not in server.pods["new"]["metadata"]["labels"]
    assert budget.left() == 1


def test_the_budget_holds_over_runs_and_is_new_an_hour_later(server, kube, budget, clock, tmp_path):
    hand_off(kube, budget, asked())
    clock.now += 600.0
    second = hand_off(kube, Budget(tmp_path / "state", 1, clock), asked())
    assert (second.did, second.pod) == ("budget", "")
    assert second.text == "the budget of this hour is spent; the next hand-off may be in 50 min"
    assert len(server.calls) == 3, "nobody is asked"
    clock.now += 3001.0
    assert hand_off(kube, budget, asked()).did == "evicted"


def starved(server):
    return [name for name, one in server.pods.items() if STARVED in one["metadata"]["labels"]]


def test_where_disruption_budgets_keep_them_all_that_is_told_and_no_label_stays(server, kube, budget):
    server.answers["evict"] = 429, failure(429, VIOLATES, "TooManyRequests")
    with pytest.raises(Declined, match=rf"did not evict pod batch/new \(429\): {VIOLATES}") as raised:
        hand_off(kube, budget, asked())
    assert raised.value.exit_code == 75
    assert methods(server) == ["GET", *["PATCH", "POST", "PATCH"] * 3], "each is asked once"
    assert starved(server) == []
    assert budget.left() == 1, "nothing was evicted"


def test_where_a_disruption_budget_keeps_the_newest_the_next_newest_goes(server, kube, budget):
    answer, refused = server.answer, (429, failure(429, VIOLATES, "TooManyRequests"))
    server.answer = lambda call: refused if call.path.endswith("/new/eviction") else answer(call)
    outcome = hand_off(kube, budget, asked(because="load-high"))
    assert (outcome.did, outcome.pod, outcome.left) == ("evicted", "batch/middle", 0)
    assert starved(server) == ["middle"]
    taken_off = server.calls[3]
    assert taken_off.path.endswith("/new")
    assert taken_off.body["metadata"]["annotations"] == {BECAUSE: None}


def test_where_two_disruption_budgets_keep_the_newest_within_a_201_the_next_newest_goes(server, kube, budget):
    said = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    answer, refused = server.answer, (201, failure(500, said))
    server.answer = lambda call: refused if call.path.endswith("/new/eviction") else answer(call)
    assert hand_off(kube, budget, asked()).pod == "batch/middle"
    assert starved(server) == ["middle"]


def test_where_two_disruption_budgets_keep_them_all_nothing_is_spent(server, kube, budget):
    server.answers["evict"] = 201, failure(500, "This pod has more than one PodDisruptionBudget")
    with pytest.raises(Declined, match="more than one PodDisruptionBudget"):
        hand_off(kube, budget, asked())
    assert starved(server) == []
    assert budget.left() == 1


@pytest.mark.parametrize(
    ("what", "told"), [("list", "list pods in namespace batch"), ("label", "label pod"), ("evict", "evict pod")]
)
def test_who_may_not_is_told_which_role_to_apply(server, kube, budget, what, told):
    server.answers[what] = 403, failure(403, 'pods is forbidden: User "system:serviceaccount:rlctl:rlctl" cannot')
    with pytest.raises(PermissionMissing, match=f"may not {told}.*kubectl apply -f configs/deploy/kubernetes-hand-off"):
        hand_off(kube, budget, asked())
    assert budget.left() == 1


def test_a_token_that_is_not_taken(server, kube, budget):
    server.answers["list"] = 401, failure(401, "Unauthorized")
    with pytest.raises(PermissionMissing, match=r"does not take the token in /var/run/secrets/.*: Unauthorized"):
        hand_off(kube, budget, asked())


@pytest.mark.parametrize(("what", "status"), [("label", 404), ("label", 422), ("evict", 404), ("evict", 409)])
def test_a_pod_that_has_gone_meanwhile_is_no_error_and_costs_nothing(server, kube, budget, what, status):
    server.answers[what] = status, failure(status, "gone")
    assert hand_off(kube, budget, asked()).text == "batch/new has gone by itself"
    assert budget.left() == 1


def test_an_answer_that_is_lost_costs_a_hand_off(server, kube, budget):
    """It may have been evicted."""
    server.answers["evict"] = 500, b"<html>proxy</html>"
    with pytest.raises(HostError, match=r"500 when asked to evict pod batch/new: <html>proxy</html>"):
        hand_off(kube, budget, asked())
    assert budget.left() == 0


def test_only_pods_with_the_label_whose_groups_are_be_here_are_touched(server, kube, budget):
    server.pods["unmarked"] = pod("unmarked", 50, labels={})
    server.pods["away"] = pod("away", 51, node="worker-8")
    server.pods["ending"] = pod("ending", 52, deletionTimestamp="2026-11-24T11:00:00Z")
    server.pods["foreign"] = pod("foreign", 53)
    names = ("unmarked", "away", "ending", "old")
    assert hand_off(kube, budget, asked(names)).pod == "batch/old"


@pytest.mark.parametrize("owner", ["", "DaemonSet", "Node"])
def test_nobody_is_evicted_whom_nobody_starts_elsewhere(server, kube, budget, owner):
    server.pods = {"lonely": pod("lonely", owner=owner)}
    with pytest.raises(CheckFailed, match=r"nobody would start any of the 1 pods of BE .* a Job or a Deployment"):
        hand_off(kube, budget, asked(("lonely",)))
    assert hand_off(kube, budget, asked(("lonely",), label_only=True)).did == "labelled"


def test_without_a_pod_the_way_out_is_told(server, kube, budget):
    with pytest.raises(
        CheckFailed, match=r"none of the 3 pods in namespace batch on node worker-7 .* is BE of this host"
    ):
        hand_off(kube, budget, asked(("other",)))
    server.pods = {}
    with pytest.raises(
        CheckFailed, match=r"no pod in namespace batch or ml on node worker-7 has the labels rlctl.io/be"
    ):
        hand_off(kube, budget, asked(namespaces=("batch", "ml")))
    assert [call.path.split("/")[4] for call in server.calls] == ["batch", "batch", "ml"]


@pytest.mark.parametrize("said", [b"[]", b"{}", b'{"items": [{"metadata": {}}]}', b'{"items": 3}', b"\xff\x00", b""])
def test_nonsense_is_one_line(server, kube, budget, said):
    server.answers["list"] = 200, said
    with pytest.raises(HostError, match=r"the Kubernetes API at 127.0.0.1:"):
        hand_off(kube, budget, asked())
    assert len(server.calls) == 1


def test_an_api_that_does_not_answer_is_waited_for_a_few_seconds(server, kube, budget, monkeypatch):
    monkeypatch.setattr(api_module, "ANSWER_SECONDS", 0.1)
    server.patience = 1.0
    with pytest.raises(
        HostError, match=r"no answer within 0.1 s when asked to list pods in namespace batch: timed out"
    ):
        hand_off(kube, budget, asked())


def test_an_answer_without_end_is_cut(server, kube, budget, monkeypatch):
    monkeypatch.setattr(api_module, "MOST_BYTES", 100)
    with pytest.raises(HostError, match=r"and more to come"):
        hand_off(kube, budget, asked())


def test_nobody_listens(budget):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(HostError, match=f"at 127.0.0.1:{port}: no answer .* Connection refused"):
        hand_off(Api("127.0.0.1", port, "a", None), budget, asked())


# --- the account


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    for name in ("cluster", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"],
            check=True, capture_output=True,
        )  # fmt: skip
    return folder


@pytest.fixture
def account(tmp_path, certificates):
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("eyJ.a.b\n")
    (folder / "namespace").write_text("batch")
    (folder / "ca.crt").write_bytes((certificates / "cluster.crt").read_bytes())
    return folder


def test_only_the_server_of_the_cluster_is_given_the_token(account, certificates):
    for name, good in (("cluster", True), ("other", False)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / f"{name}.crt", certificates / f"{name}.key")
        server = RecordingApi(PODS, context)
        try:
            environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
            kube = Api.in_cluster(account, environ)
            if good:
                assert len(kube.pods("batch", "worker-7", "rlctl.io/be=true")) == 3
                assert server.calls[0].headers["Authorization"] == "Bearer eyJ.a.b"
            else:
                with pytest.raises(HostError, match=r"certificate verify failed"):
                    kube.pods("batch", "worker-7", "rlctl.io/be=true")
                assert server.calls == []
        finally:
            server.close()


INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.mark.parametrize("environ", [{}, INSIDE | {"KUBERNETES_SERVICE_PORT": "tcp"}])
def test_outside_of_a_pod_there_is_no_api(account, environ):
    with pytest.raises(ConfigError, match=r"run it within a pod of the cluster"):
        Api.in_cluster(account, environ)


def test_a_pod_without_a_token_is_told_how_it_gets_one(account):
    (account / "token").unlink()
    with pytest.raises(ConfigError, match=r"no token of its service account; kubectl -n rlctl patch daemonset rlctl"):
        Api.in_cluster(account, INSIDE)
    for content in ("", "two words", "\u00fc"):
        (account / "token").write_text(content)
        with pytest.raises(ConfigError, match=r"token: is not one word"):
            secret(account / "token")


def test_a_certificate_that_is_none(account):
    (account / "ca.crt").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"ca.crt: "):
        Api.in_cluster(account, INSIDE)


# --- the budget


def test_the_budget_is_small_and_forgets(tmp_path, clock):
    budget = Budget(tmp_path, 3, clock)
    for _ in range(50):
        if budget.left():
            budget.spend()
        clock.now += 300.0
    times = json.loads((tmp_path / FILE).read_text())["times"]
    assert len(times) <= 3
    clock.now -= 86400.0
    assert budget.left() == 3, "a clock that was set back ends nothing"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"times": 3}', '{"times": ["x"]}'])
def test_what_cannot_be_read_allows_nothing(tmp_path, content, kube, server):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(HostError, match=rf"{FILE}: cannot be read, so nothing is handed off; remove it"):
        hand_off(kube, Budget(tmp_path, 1), asked())
    assert server.calls == []


def test_a_fifo_is_no_budget_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(HostError, match=r"no regular file"):
        Budget(tmp_path, 1).left()


def test_a_budget_that_cannot_be_kept_allows_nothing(tmp_path, kube, server, budget):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / f"{FILE}.part").mkdir()
    with pytest.raises(HostError, match=r"Is a directory: without its budget nothing is handed off"):
        hand_off(kube, budget, asked())
    assert methods(server) == ["GET"]


def test_two_at_once_do_not_spend_the_same_budget(budget):
    with budget.alone(), pytest.raises(HostError, match=r"another hand-off is under way"), budget.alone():
        pass


# --- BE's pods, and the command

UIDS = ("0a1b2c3d-1111-4a5b-8c6d-112233445566", "0a1b2c3d-2222-4a5b-8c6d-112233445566")
TREES = {
    "cgroupfs": [f"kubepods/besteffort/pod{uid}/3f4c" for uid in UIDS],
    "systemd": [
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid.replace('-', '_')}.slice/cri-3f4c.scope"
        for uid in UIDS
    ],
    "kind": [
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{uid.replace('-', '_')}.slice/cri-3f4c.scope"
        for uid in UIDS
    ],
}


@pytest.mark.parametrize("each_pod", [True, False])
@pytest.mark.parametrize("tree", TREES)
def test_be_is_known_by_the_uids_in_its_groups(tmp_path, monkeypatch, serve_yaml, tree, each_pod):
    root = tmp_path / "cgroup"
    for path in TREES[tree]:
        (root / path).mkdir(parents=True)
    layout = Layout(dict.fromkeys((Controller.CPU, Controller.CPUSET, Controller.FREEZER), Mount(root, 2)), {})
    monkeypatch.setattr(module.Layout, "detect", lambda: layout)
    be = f"{{kind: kubernetes, qos: besteffort, each_pod: {str(each_pod).lower()}}}"
    assert be_pods(load_config(serve_yaml("{kind: cgroup, path: /batch}", be))) == set(UIDS)
    ended = serve_yaml("{kind: cgroup, path: /batch}", f"{{kind: cgroup, path: /ended}}\n    - {be}")
    assert be_pods(load_config(ended)) == set(UIDS), "whatever else of BE is there"


@pytest.fixture
def command(server, kube, monkeypatch, serve_yaml, tmp_path):
    """`rlctl hand-off` with these words, on this server."""
    path = serve_yaml("policy:", f"state_directory: {tmp_path}/state\npolicy:")
    monkeypatch.setattr(Api, "in_cluster", lambda: kube)
    monkeypatch.setattr(module, "be_pods", lambda config: asked().uids)
    monkeypatch.setenv("RLCTL_REASON", "cpus-busy")
    return lambda *words: main(["hand-off", "--config", str(path), "--namespace", "batch", *words])


def test_when_be_is_fed_again_the_label_is_taken_off_and_nobody_is_moved(server, kube, budget):
    """Once it stayed, and whatever goes by the label moved a pod that had CPUs again."""
    server.pods["other"] = pod("other", labels={"rlctl.io/be": "true", STARVED: "true"})
    hand_off(kube, budget, asked(label_only=True))
    would = keep(kube, budget, asked(dry_run=True))
    assert (would.did, would.text) == ("kept", "batch/new would lose the label rlctl.io/starved: BE is fed again")
    assert keep(kube, budget, asked()).text == "batch/new lost the label rlctl.io/starved: BE is fed again"
    assert server.calls[-1].body["metadata"]["annotations"] == {BECAUSE: None}
    assert server.pods["new"]["metadata"]["labels"] == {"rlctl.io/be": "true"}
    assert STARVED in server.pods["other"]["metadata"]["labels"], "another host's BE"
    assert "POST" not in methods(server)
    assert keep(kube, budget, asked()).text == "no pod of BE here has the label rlctl.io/starved"


def test_a_pod_that_has_gone_needs_no_label_taken_off_and_a_refusal_is_told(server, kube, budget):
    hand_off(kube, budget, asked(label_only=True))
    server.answers["label"] = 404, failure(404, "gone")
    assert keep(kube, budget, asked()).pod == ""
    server.answers["label"] = 403, failure(403, "no")
    with pytest.raises(PermissionMissing):
        keep(kube, budget, asked())


def test_a_pod_that_may_not_be_touched_keeps_no_other_from_losing_its_label(server, kube, budget, monkeypatch):
    for name in ("old", "new"):
        server.pods[name] = copy.deepcopy(server.pods[name])
        server.pods[name]["metadata"]["labels"][STARVED] = "true"
    label, tried = kube.label, []

    def refusing_first(pod, *args, **options):
        tried.append(str(pod))
        if len(tried) == 1:
            raise PermissionMissing("no")
        label(pod, *args, **options)

    monkeypatch.setattr(type(kube), "label", lambda _, pod, *args, **options: refusing_first(pod, *args, **options))
    with pytest.raises(PermissionMissing):
        keep(kube, budget, asked())
    assert [STARVED in server.pods[name.split("/")[1]]["metadata"]["labels"] for name in tried] == [True, False]


def test_the_command_keeps_pods_where_the_service_says_that_be_is_fed(command, capsys, server, monkeypatch):
    assert command("--node", "worker-7", "--label-only") == 0
    monkeypatch.setenv("RLCTL_FED", "1")
    assert command("--node", "worker-7") == 0
    assert capsys.readouterr().out.splitlines()[1] == "batch/new lost the label rlctl.io/starved: BE is fed again"
    assert methods(server) == ["GET", "PATCH"] * 2


def test_where_the_last_of_be_has_gone_there_is_no_label_to_take_off(command, capsys, monkeypatch):
    """Else the service would tell it once a minute until somebody comes."""

    def gone(config):
        raise HostError("BE is not there")

    monkeypatch.setattr(module, "be_pods", gone)
    assert command("--node", "worker-7") != 0
    monkeypatch.setenv("RLCTL_FED", "1")
    assert command("--node", "worker-7") == 0
    assert capsys.readouterr().out == "no pod of BE here has the label rlctl.io/starved\n"


def test_the_command_hands_off_and_says_so(command, capsys, server):
    assert command("--node", "worker-7", "--dry-run") == 0
    assert "batch/new would be" in capsys.readouterr().out
    assert command("--node", "worker-7", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "did": "evicted", "pod": "batch/new", "left": 0,
        "text": "batch/new is labelled rlctl.io/starved=true and evicted; 0 more within this hour",
    }  # fmt: skip
    assert server.pods["new"]["metadata"]["labels"][STARVED] == "true"
    assert server.calls[-2].body["metadata"]["annotations"] == {BECAUSE: "cpus-busy"}
    assert command("--node", "worker-7") == 0
    assert "the budget of this hour is spent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((), 78, "NODE_NAME is not set: take it from the downward API"),
        (("--node", "worker-7", "--selector", " "), 78, "--selector is empty"),
        (("--node", "worker-8"), 1, "no pod in namespace batch on node worker-8 has the labels rlctl.io/be=true"),
        (("--node", "worker-7", "--per-hour", "0"), 2, "--per-hour"),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(command, capsys, words, code, told):
    assert command(*words) == code
    err = capsys.readouterr().err
    assert err.startswith("rlctl: error: ")
    assert err.count("\n") == 1
    assert told in err


def test_a_refusal_has_its_exit_code(command, capsys, server):
    server.answers["evict"] = 429, failure(429, VIOLATES)
    assert command("--node", "worker-7") == 75
    assert VIOLATES in capsys.readouterr().err
    server.answers["evict"] = 403, failure(403, "no")
    assert command("--node", "worker-7") == 77


def test_outside_of_a_cluster_the_command_says_so(serve_yaml):
    words = [sys.executable, "-m", "rlctl", "hand-off", "--config", serve_yaml(), "--node", "here"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, env=environ)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith("rlctl: error: KUBERNETES_SERVICE_HOST and _PORT are not set")
