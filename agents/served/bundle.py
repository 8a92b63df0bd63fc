"""A deployable policy: a folder with `policy.onnx` (the network, logits only) and `card.json` (what its numbers mean).

Whatever does not fit is refused before the network runs: a file that is damaged or was changed, another observation
or action table than this rlctl's, an operator that no policy needs, and where only signed bundles are wanted, one
that is not. Each file is read once: what was verified is what runs. Nothing here unpickles, and nothing imports torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlctl import __version__
from rlctl.agents.served.card import ActionTable, Card, CardParts, Graph, ObservationTable, Port, Score
from rlctl.agents.served.network import first_line, logits_of
from rlctl.agents.served.onnx_graph import MOST_FILE_BYTES, GraphError, read_graph
from rlctl.agents.served.signature import SignatureError, check, statement
from rlctl.agents.served.signature import sign as signature_of
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError, ConfigError, PermissionMissing
from rlctl.envs.observation import LAGS
from rlctl.envs.whole_file import whole
from rlctl.envs.yaml_edge import validated

POLICY, CARD, SIGNATURE = "policy.onnx", "card.json", "bundle.sig"

MOST_BYTES = {POLICY: MOST_FILE_BYTES, CARD: 1 << 20, SIGNATURE: 1 << 16}
"""Beyond it a file is no policy of ours: those that ship are many times smaller."""

ANEW = "export it again with this rlctl, or use the rlctl that made it"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A policy that was verified and is ready to decide."""

    folder: Path
    card: Card
    policy: bytes

    def logits(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """How good each move is, the best one highest.

        Args:
            observations: float32, shape (size,) or (n, size).

        Returns:
            float32, shape (len(MOVES),) or (n, len(MOVES)).

        Raises:
            BundleError: Another shape, or the network does not run.
        """
        size = self.card.observation.size
        if observations.ndim not in (1, 2) or observations.shape[-1] != size:
            raise BundleError(f"{self.card.name}: sees {size} numbers, not an array of shape {observations.shape}")
        logits = logits_of(self.policy, np.atleast_2d(observations).astype(np.float32, copy=False))
        return logits if observations.ndim == 2 else logits[0]


def load(path: Path, trusted: Sequence[Path] = ()) -> Bundle:
    """A bundle, verified as in `read`, its network run once.

    Raises:
        BundleError: Something in it is not as it must be, or onnxruntime is not installed.
        PermissionMissing: A file may not be read.
    """
    card, policy = read(path, trusted)
    bundle = Bundle(path.resolve(), card, policy)
    logits = bundle.logits(np.zeros((1, card.observation.size), np.float32))
    if logits.shape != (1, len(MOVES)) or not np.isfinite(logits).all():
        raise BundleError("does not answer with a finite number for each move; " + ANEW, path / POLICY)
    return bundle


def read(path: Path, trusted: Sequence[Path] = ()) -> tuple[Card, bytes]:
    """The card and the bytes of policy.onnx, verified; needs no onnxruntime and runs nothing.

    Args:
        trusted: Files with public keys, of which one must have signed the bundle; without any it need not be signed.

    Raises:
        BundleError: Something in it is not as it must be.
        ConfigError: A file of trusted keys is none.
        PermissionMissing: A file may not be read.
    """
    card_json, policy = _file(path, CARD), _file(path, POLICY)
    if trusted:
        _check_signature(path, statement(card_json, policy), trusted)
    card = _card(card_json, path / CARD)
    _check_tables(card, path / CARD)
    digest = hashlib.sha256(policy).hexdigest()
    if digest != card.policy_sha256:
        raise BundleError(
            f"has sha256 {digest[:12]}..., the card says {card.policy_sha256[:12]}...: damaged or replaced; copy the "
            "bundle again",
            path / POLICY,
        )
    if _graph(policy, path / POLICY) != card.graph:
        raise BundleError("graph: is not what policy.onnx holds; " + ANEW, path / CARD)
    _check_ports(card, path / POLICY)
    return card, policy


def sign(path: Path, key: Path) -> Card:
    """Sign a valid bundle; whatever changes it afterwards takes the signature away.

    Raises:
        BundleError: It is no valid bundle, or changed meanwhile.
        ConfigError: The key cannot be used.
    """
    card, policy = read(path)
    card_json = _file(path, CARD)
    if _card(card_json, path / CARD) != card:
        raise BundleError("changed while it was read; sign it when it is done", path)
    _write(path / SIGNATURE, signature_of(statement(card_json, policy), key))
    return card


def save(path: Path, name: str, parts: CardParts, policy: bytes) -> Card:
    """Write a bundle; files of these names are replaced. The card comes last, so a half-written one is refused.

    Raises:
        BundleError: Network or card would not load again.
    """
    data = parts.model_dump(mode="json") | {
        "schema": 1,
        "name": name,
        "created": datetime.now(UTC).date().isoformat(),
        "rlctl_version": __version__,
        "observation": ObservationTable.here(parts.lags).model_dump(mode="json"),
        "action": ActionTable.here().model_dump(mode="json"),
        "masked": True,
        "policy_sha256": hashlib.sha256(policy).hexdigest(),
        "graph": _graph(policy, path / POLICY).model_dump(mode="json"),
    }
    card = _validated(data, path / CARD)
    _check_tables(card, path / CARD)
    _check_ports(card, path / POLICY)
    path.mkdir(parents=True, exist_ok=True)
    (path / SIGNATURE).unlink(missing_ok=True)
    _write(path / POLICY, policy)
    _write(path / CARD, _as_json(card))
    return card


def add_scores(path: Path, scores: Mapping[str, Mapping[str, Score]]) -> Card:
    """Put an evaluation's scores by scenario and shield into the card, for older ones; a signature is removed.

    Raises:
        BundleError: It is no valid bundle.
    """
    card, _ = read(path)
    (path / SIGNATURE).unlink(missing_ok=True)
    scored = card.model_copy(update={"scores": {name: dict(each) for name, each in scores.items()}})
    _write(path / CARD, _as_json(scored))
    return scored


def _check_signature(path: Path, signed: bytes, trusted: Sequence[Path]) -> None:
    if not (path / SIGNATURE).exists():
        raise BundleError("is not signed, and only bundles signed by a trusted key are taken: `rlctl sign`", path)
    try:
        check(signed, _file(path, SIGNATURE), trusted)
    except SignatureError as error:
        why = f"is no signature of these files by a trusted key ({error}); copy the bundle again, or `rlctl sign` it"
        raise BundleError(why, path / SIGNATURE) from error


def _card(data: bytes, file: Path) -> Card:
    try:
        return _validated(json.loads(data, object_pairs_hook=_once, parse_constant=_no_number), file)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"is no JSON: {first_line(error)}; copy the bundle again", file) from error


def _validated(data: object, file: Path) -> Card:
    try:
        return validated(Card, data, file)
    except ConfigError as error:
        raise BundleError(f"{error}; {ANEW}") from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return table


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _file(folder: Path, name: str) -> bytes:
    """A file of the bundle, whole; links out of the folder are not followed."""
    file, most = folder / name, MOST_BYTES[name]
    try:
        if file.resolve().parent != folder.resolve():
            raise BundleError("is a link out of the bundle; put the file itself there", file)
        # a pipe must not hold us up
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise BundleError("is no file; copy the bundle again", file)
            data = stream.read(most + 1)
    except PermissionError as error:
        raise PermissionMissing(f"{file}: may not be read; run as a user who may, or change its mode") from error
    except (OSError, RuntimeError) as error:  # a link to itself is a RuntimeError
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        inside = folder / "bundle"  # as a training run has it
        way_out = (
            f"did you mean {inside}?" if (inside / name).exists() else f"a bundle is a folder with {POLICY} and {CARD}"
        )
        raise BundleError(f"cannot be read: {why}; {way_out}", file) from error
    if len(data) > most:
        raise BundleError(f"has more than {most >> 20} MB, which no policy needs; {ANEW}", file)
    return data


def _graph(policy: bytes, file: Path) -> Graph:
    try:
        return read_graph(policy)
    except GraphError as error:
        raise BundleError(f"{error}; {ANEW}", file) from error


def _check_tables(card: Card, file: Path) -> None:
    """Make sure that observation and moves mean what they mean in this rlctl."""
    table = card.observation
    if unknown := sorted(set(table.lags) - set(LAGS)):
        raise BundleError(f"lags: {unknown} are not among this rlctl's {list(LAGS)}; {ANEW}", file)
    try:
        here = ObservationTable.here(table.lags)
    except ConfigError as error:
        raise BundleError(f"{error}; {ANEW}", file) from error
    for what, theirs, ours in (
        ("observation.version", table.version, here.version),
        ("observation.features", table.features, here.features),
        ("observation.experience", table.experience, here.experience),
        ("observation.size", table.size, here.size),
        ("action.version", card.action.version, ActionTable.here().version),
        ("action.moves", card.action.moves, ActionTable.here().moves),
    ):
        if theirs != ours:
            raise BundleError(f"{what}: {_difference(theirs, ours)}; {ANEW}", file)


def _difference(theirs: object, ours: object) -> str:
    if not isinstance(theirs, tuple) or not isinstance(ours, tuple):
        return f"{theirs}, here it is {ours}"
    if len(theirs) != len(ours):
        return f"{len(theirs)} rows, here there are {len(ours)}"
    row = next(number for number, (one, other) in enumerate(zip(theirs, ours, strict=True)) if one != other)
    return f"row {row} is ({theirs[row]}), here it is ({ours[row]})"


def _check_ports(card: Card, file: Path) -> None:
    for kind, ports, width in (
        ("input", card.graph.inputs, card.observation.size),
        ("output", card.graph.outputs, len(card.action.moves)),
    ):
        if len(ports) != 1:
            raise BundleError(f"has {len(ports)} {kind}s, a policy has one; {ANEW}", file)
        if ports[0].shape != (None, width):
            raise BundleError(f"{kind} {_shape(ports[0])} is not (n, {width}); {ANEW}", file)


def _shape(port: Port) -> str:
    return f"({', '.join('n' if side is None else str(side) for side in port.shape)})"


def _as_json(card: Card) -> bytes:
    return (json.dumps(card.model_dump(mode="json", by_alias=True), indent=1) + "\n").encode()


def _write(file: Path, data: bytes) -> None:
    with whole(file, lasting=True) as stream:
        stream.write(data)
