"""Bundles are written, signed and scored here; the daemon only reads them (`rlctl.agents.served.bundle`)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlctl import __version__
from rlctl.agents.served.bundle import (
    ANEW,
    CARD,
    SIGNATURE,
    WEIGHTS,
    card_of,
    check_layers,
    check_tables,
    file_of,
    read,
    table_of,
    valid,
)
from rlctl.agents.served.card import ActionTable, Card, CardParts, CardScore, ObservationTable
from rlctl.agents.served.network import Array, Network, NetworkError, read_network
from rlctl.agents.served.signature import NAMESPACE, last_line, run_tool, statement
from rlctl.envs.errors import BundleError, ConfigError
from rlctl.envs.whole_file import whole


def sign(path: Path, key: Path) -> Card:
    """Sign a valid bundle; whatever changes it afterwards takes the signature away.

    Raises:
        BundleError: It is no valid bundle, or changed meanwhile.
        ConfigError: The key cannot be used.
    """
    card, _ = read(path)
    card_json, weights = file_of(path, CARD), file_of(path, WEIGHTS)
    if card_of(card_json, path / CARD) != card or hashlib.sha256(weights).hexdigest() != card.policy_sha256:
        raise BundleError("changed while it was read; sign it when it is done", path)
    _write(path / SIGNATURE, signature_of(statement(card_json, weights), key))
    return card


def save(path: Path, name: str, parts: CardParts, network: Network) -> Card:
    """Write a bundle; files of these names are replaced. The card comes last, so a half-written one is refused.

    Raises:
        BundleError: Network or card would not load again.
    """
    try:
        weights = as_file(network)
    except NetworkError as error:
        raise BundleError(f"{error}; {ANEW}", path / WEIGHTS) from error
    data = parts.model_dump(mode="json") | {
        "schema": 2,
        "name": name,
        "created": datetime.now(UTC).date().isoformat(),
        "rlctl_version": __version__,
        "observation": ObservationTable.here(parts.lags).model_dump(mode="json"),
        "action": ActionTable.here().model_dump(mode="json"),
        "masked": True,
        "policy_sha256": hashlib.sha256(weights).hexdigest(),
        "network": table_of(network).model_dump(mode="json"),
    }
    card = valid(data, path / CARD)
    check_tables(card, path / CARD)
    check_layers(card, path / WEIGHTS)
    path.mkdir(parents=True, exist_ok=True)
    (path / SIGNATURE).unlink(missing_ok=True)
    _write(path / WEIGHTS, weights)
    _write(path / CARD, _as_json(card))
    return card


def add_scores(path: Path, scores: Mapping[str, Mapping[str, CardScore]]) -> Card:
    """Put an evaluation's scores by scenario and shield into the card, for older ones; a signature is removed.

    Raises:
        BundleError: It is no valid bundle.
    """
    card, _ = read(path)
    (path / SIGNATURE).unlink(missing_ok=True)
    scored = card.model_copy(update={"scores": {name: dict(each) for name, each in scores.items()}})
    _write(path / CARD, _as_json(scored))
    return scored


def as_file(network: Network) -> bytes:
    """The bytes of weights.npz; the same network gives the same bytes.

    Raises:
        NetworkError: `read_network` would refuse them.
    """
    arrays: dict[str, NDArray[np.generic]] = {"activation": np.frombuffer(network.activation.encode(), np.uint8)}
    for place, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        arrays[f"weight{place}"], arrays[f"bias{place}"] = as_float32(weight), as_float32(bias)
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    data = file.getvalue()
    read_network(data)
    return data


def as_float32(values: NDArray[np.floating]) -> Array:
    """As weights are kept: float32, in C order."""
    return np.ascontiguousarray(values, np.float32)


def signature_of(text: bytes, key: Path) -> bytes:
    """Sign a statement; ssh-keygen asks for the key's passphrase, or an agent for the key.

    Args:
        key: A private Ed25519 key as `ssh-keygen -t ed25519` makes it, or the public one of a key that an agent holds.

    Raises:
        ConfigError: The key cannot be used, or there is no ssh-keygen.
    """
    done = run_tool(["-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE], text)
    if done.returncode:
        raise ConfigError(f"cannot sign: {last_line(done.stderr)}", key)
    if b"ssh-ed25519" not in base64.b64decode(b"".join(done.stdout.splitlines()[1:-1]))[:64]:
        raise ConfigError("is no Ed25519 key: ssh-keygen -t ed25519 -f KEY makes one", key)
    return done.stdout


def _as_json(card: Card) -> bytes:
    return (json.dumps(card.model_dump(mode="json", by_alias=True), indent=1) + "\n").encode()


def _write(file: Path, data: bytes) -> None:
    with whole(file, lasting=True) as stream:
        stream.write(data)
