"""The signature of a bundle: Ed25519 over its files' hashes, made and checked by OpenSSH's `ssh-keygen -Y`.

Operators have such keys, in files, agents or hardware, and the tool that goes with them; a process of its own leaves
nothing in the daemon's memory. It checks bytes that were read already, never the files once more.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlctl.envs.errors import ConfigError, reading

NAMESPACE = "rlctl-bundle"
"""A signature that the same key made for another purpose, such as a git commit, does not count for a bundle."""

SIGNER = "rlctl"
TOOL = "ssh-keygen"
CHECK_SECONDS = 5.0

_PUBLIC = re.compile(r"((?:sk-)?ssh-ed25519(?:@openssh\.com)? [A-Za-z0-9+/=]+)( .*)?")


class SignatureError(ValueError):
    """The signature is not by a trusted key over this statement; the text is one line."""


def statement(card: bytes, policy: bytes) -> bytes:
    """The text that is signed: the hashes of both files, a line for each."""
    hashes = (hashlib.sha256(card).hexdigest(), hashlib.sha256(policy).hexdigest())
    return "rlctl bundle 1\ncard.json {}\nweights.npz {}\n".format(*hashes).encode()


def check(text: bytes, signature: bytes, trusted: Sequence[Path]) -> None:
    """Make sure that one of the trusted keys signed a statement.

    Args:
        trusted: Files with public keys, one a line as in `id_ed25519.pub`.

    Raises:
        SignatureError: None did.
        ConfigError: A file of keys is none, or there is no ssh-keygen.
        PermissionMissing: A file of keys may not be read.
    """
    signers = [f'{SIGNER} namespaces="{NAMESPACE}" {key}\n' for file in trusted for key in _keys(file)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_in_memory(data)) for data in ("".join(signers).encode(), signature)]
        allowed, signed = (f"/proc/self/fd/{one}" for one in files)
        words = ["-Y", "verify", "-f", allowed, "-I", SIGNER, "-n", NAMESPACE, "-s", signed]
        done = run_tool(words, text, files)
    if done.returncode:
        raise SignatureError(last_line(done.stderr or done.stdout))


def _keys(file: Path) -> list[str]:
    try:
        with reading(file):
            lines = [line.strip() for line in file.read_text(encoding="ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise ConfigError("is no file of public keys; give KEY.pub, as ssh-keygen made it", file) from error
    keys = [_PUBLIC.fullmatch(line) for line in lines if line and not line.startswith("#")]
    if not keys or None in keys:
        raise ConfigError("is no Ed25519 public key: `ssh-keygen -t ed25519 -f KEY` makes a pair; give KEY.pub", file)
    return [key[1] for key in keys if key]


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[int]:
    with open(os.memfd_create("rlctl-signature"), "wb", buffering=0) as file:
        file.write(data)
        yield file.fileno()


def run_tool(words: Sequence[str], text: bytes, files: Sequence[int] = ()) -> subprocess.CompletedProcess[bytes]:
    """Run ssh-keygen over a text; ConfigError: there is none, or it hangs."""
    seconds = CHECK_SECONDS if files else None  # whoever signs may have to type a passphrase
    try:
        return subprocess.run(
            [TOOL, *words], input=text, capture_output=True, pass_fds=files, timeout=seconds, check=False
        )
    except FileNotFoundError as error:
        raise ConfigError(f"signed bundles need {TOOL}: install openssh-client") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{TOOL} gave no answer within {CHECK_SECONDS:g} s") from error


def last_line(output: bytes) -> str:
    """The last thing that ssh-keygen said, for a message."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f"{TOOL} says: {lines[-1][:200]}" if lines else f"{TOOL} says nothing"
