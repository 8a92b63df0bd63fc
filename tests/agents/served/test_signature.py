"""Where only signed bundles are wanted, nothing but the very bytes that a trusted key signed is loaded."""

import contextlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlctl.agents.served import bundle, bundle_writer, signature
from rlctl.agents.served.bundle_writer import as_file, signature_of
from rlctl.agents.served.signature import SignatureError, check, statement
from rlctl.cli import main
from rlctl.envs.errors import BundleError, ConfigError

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen (openssh-client)")

SAID = statement(b"card", b"policy")


def pair(folder, name, kind="ed25519"):
    file = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"{name} @ here", "-f", file], check=True)
    return file, file.with_suffix(".pub")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return pair(folder, "ours"), pair(folder, "theirs")


@pytest.fixture
def signed(make_bundle, tmp_path, keys):
    folder = make_bundle(tmp_path / "tiny")
    bundle_writer.sign(folder, keys[0][0])
    return folder


def refused(folder, trusted, *parts):
    with pytest.raises(BundleError) as caught:
        bundle.read(folder, [trusted])
    said = str(caught.value)
    assert "\n" not in said
    assert all(part in said for part in parts), said


def test_bundle_that_trusted_key_signed_is_taken(signed, keys):
    (_, ours), (_, theirs) = keys
    assert bundle.read(signed, [theirs, ours])[0].name == "tiny"
    refused(signed, theirs, "bundle.sig: is not a signature of these files by a trusted key", "ssh-keygen says")


def test_unsigned_bundle_is_refused_where_signed_is_wanted(make_bundle, tmp_path, keys):
    folder = make_bundle(tmp_path / "tiny")
    assert bundle.read(folder)[0].name == "tiny"
    refused(folder, keys[0][1], "is not signed", "rlctl sign")


def test_files_that_were_swapped_after_signing_are_refused(signed, make_bundle, tmp_path, keys):
    other = make_bundle(tmp_path / "other", algorithm="DQN")
    for name in (bundle.WEIGHTS, bundle.CARD):
        kept = (signed / name).read_bytes()
        (signed / name).write_bytes((other / name).read_bytes() + b" ")
        refused(signed, keys[0][1], "not a signature of these files")
        (signed / name).write_bytes(kept)
    (other / bundle.SIGNATURE).write_bytes((signed / bundle.SIGNATURE).read_bytes())
    refused(other, keys[0][1], "not a signature of these files")


def test_what_was_verified_is_what_is_loaded(signed, keys, monkeypatch):
    """Somebody who puts another network there while the signature is looked at comes too late."""
    policy, verify = (signed / bundle.WEIGHTS).read_bytes(), signature.check

    def swap_then_verify(*words):
        (signed / bundle.WEIGHTS).write_bytes(b"another network")
        verify(*words)

    monkeypatch.setattr(bundle, "check", swap_then_verify)
    assert as_file(bundle.read(signed, [keys[0][1]])[1]) == policy
    monkeypatch.undo()
    refused(signed, keys[0][1], "not a signature of these files")


def test_new_scores_take_the_signature_away(signed, keys):
    bundle_writer.add_scores(signed, {})
    refused(signed, keys[0][1], "is not signed")


def test_a_signature_for_another_purpose_is_none(signed, keys):
    (private, public), _ = keys
    words = ["ssh-keygen", "-Y", "sign", "-q", "-f", private, "-n", "git"]
    said = statement((signed / bundle.CARD).read_bytes(), (signed / bundle.WEIGHTS).read_bytes())
    (signed / bundle.SIGNATURE).write_bytes(subprocess.run(words, input=said, capture_output=True, check=True).stdout)
    refused(signed, public, "not a signature of these files")


@given(data=st.binary(max_size=300), at=st.integers(0, 300), whole=st.booleans())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_is_no_signature(data, at, whole, keys):
    (private, public), _ = keys
    good = signature_of(SAID, private)
    garbage = data if whole else good[:at] + data + good[at + len(data) :]
    with contextlib.suppress(SignatureError):
        check(SAID, garbage, [public])
        assert garbage.split() == good.split(), "only blanks may differ"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no Ed25519 public key"),
        ("ssh-rsa AAAAB3NzaC1yc2E= me\n", "no Ed25519 public key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", "give KEY.pub"),
        ('cert-authority,namespaces="*" ssh-ed25519 AAAA\n', "no Ed25519 public key"),
        ("sch\N{LATIN SMALL LETTER O WITH DIAERESIS}n", "no file of public keys"),
    ],
)
def test_wrong_file_of_keys_is_a_configuration_mistake(text, said, tmp_path):
    (file := tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match=said):
        check(SAID, b"", [file])
    with pytest.raises(ConfigError, match="cannot be read"):
        check(SAID, b"", [tmp_path / "absent"])


def test_several_keys_may_stand_in_one_file(keys, tmp_path):
    (private, ours), (_, theirs) = keys
    (file := tmp_path / "keys").write_text(f"# theirs\n{theirs.read_text()}\n# ours\n{ours.read_text()}")
    check(SAID, signature_of(SAID, private), [file])


def test_only_ed25519_keys_sign(tmp_path, capsys, make_bundle):
    private, _ = pair(tmp_path, "weak", "ecdsa")
    with pytest.raises(ConfigError, match="is no Ed25519 key"):
        signature_of(SAID, private)
    with pytest.raises(ConfigError, match="cannot sign: ssh-keygen says"):
        signature_of(SAID, tmp_path / "absent")


def test_without_the_tool_the_way_out_is_told(keys, monkeypatch):
    monkeypatch.setattr(signature, "TOOL", "ssh-keygen-that-is-not-there")
    with pytest.raises(ConfigError, match="install openssh-client"):
        signature_of(SAID, keys[0][0])


def test_command_signs_and_configuration_asks_for_it(make_bundle, tmp_path, keys, capsys, serve_config):
    folder = make_bundle(tmp_path / "tiny")
    config = serve_config(tmp_path, folder, keys[0][1])
    assert main(["config", "check", str(config)]) == 78
    assert "is not signed" in capsys.readouterr().err
    assert main(["sign", str(folder), "--key", str(keys[0][0])]) == 0
    assert "bundle.sig: tiny, weights.npz" in capsys.readouterr().out
    assert main(["config", "check", str(config)]) == 0


@pytest.fixture
def serve_config():
    def write(folder, policy, key):
        (file := Path(folder) / "serve.yaml").write_text(
            json.dumps(
                {
                    "lc": {
                        "workload": {"kind": "cgroup", "path": "/web"},
                        "slo": {"target_milliseconds": 10, "max_load_rps": 480},
                        "latency": {"kind": "nginx-log", "path": "/nowhere/access.log"},
                    },
                    "be": {"workloads": [{"kind": "cgroup", "path": "/batch"}]},
                    "policy": {"name": str(policy), "trusted_keys": [str(key)]},
                }
            )
        )
        return file

    return write
