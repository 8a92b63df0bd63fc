"""A deployable policy: a folder with `weights.npz` (the network) and `card.json` (what its numbers mean).

Whatever does not fit is refused before the network runs. That is a file that is damaged or was changed, and another
observation or action table than this rlctl's. Where only signed bundles are wanted, it is an unsigned one. Each file is
read once: what was verified is what runs. Nothing here unpickles, and nothing imports torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.served.card import ActionTable, Card, NetworkTable, ObservationTable
from rlctl.agents.served.network import MOST_FILE_BYTES, Network, NetworkError, first_line, read_network
from rlctl.agents.served.signature import SignatureError, check, statement
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError, ConfigError, PermissionMissing
from rlctl.envs.observation import LAGS
from rlctl.envs.yaml_edge import validate

WEIGHTS, CARD, SIGNATURE = "weights.npz", "card.json", "bundle.sig"

MOST_BYTES = {WEIGHTS: MOST_FILE_BYTES, CARD: 1 << 20, SIGNATURE: 1 << 16}
"""Beyond it a file is no policy of ours: those that ship are many times smaller."""

ANEW = "export it again with this rlctl, or use the rlctl that made it"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A policy that was verified and is ready to decide."""

    folder: Path
    card: Card
    network: Network

    def logits(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """How good each move is, the best one highest.

        Args:
            observations: float32, shape (size,) or (n, size).

        Returns:
            float32, shape (len(MOVES),) or (n, len(MOVES)).

        Raises:
            BundleError: Another shape.
        """
        size = self.card.observation.size
        if observations.ndim not in (1, 2) or observations.shape[-1] != size:
            raise BundleError(f"{self.card.name}: sees {size} numbers, not an array of shape {observations.shape}")
        logits = self.network.logits(np.atleast_2d(observations).astype(np.float32, copy=False))
        return logits if observations.ndim == 2 else logits[0]


def load(path: Path, trusted: Sequence[Path] = ()) -> Bundle:
    """A bundle, verified as in `read`, its network run once.

    Raises:
        BundleError: Something in it is not as it must be.
        PermissionMissing: A file may not be read.
    """
    card, network = read(path, trusted)
    bundle = Bundle(path.resolve(), card, network)
    logits = bundle.logits(np.zeros((1, card.observation.size), np.float32))
    if logits.shape != (1, len(MOVES)) or not np.isfinite(logits).all():
        raise BundleError("does not answer with a finite number for each move; " + ANEW, path / WEIGHTS)
    return bundle


def read(path: Path, trusted: Sequence[Path] = ()) -> tuple[Card, Network]:
    """The card and the network, verified; runs nothing.

    Args:
        trusted: Files with public keys, of which one must have signed the bundle; without any it need not be signed.

    Raises:
        BundleError: Something in it is not as it must be.
        ConfigError: A file of trusted keys is none.
        PermissionMissing: A file may not be read.
    """
    card_json, weights = file_of(path, CARD), file_of(path, WEIGHTS)
    if trusted:
        _check_signature(path, statement(card_json, weights), trusted)
    card = card_of(card_json, path / CARD)
    check_tables(card, path / CARD)
    digest = hashlib.sha256(weights).hexdigest()
    if digest != card.policy_sha256:
        raise BundleError(
            f"has sha256 {digest[:12]}..., the card says {card.policy_sha256[:12]}...: damaged or replaced; copy the "
            "bundle again",
            path / WEIGHTS,
        )
    network = _network(weights, path / WEIGHTS)
    if table_of(network) != card.network:
        raise BundleError(f"network: is not what {WEIGHTS} holds; {ANEW}", path / CARD)
    check_layers(card, path / WEIGHTS)
    return card, network


def _check_signature(path: Path, signed: bytes, trusted: Sequence[Path]) -> None:
    if not (path / SIGNATURE).exists():
        raise BundleError("is not signed, and only bundles signed by a trusted key are taken: `rlctl sign`", path)
    try:
        check(signed, file_of(path, SIGNATURE), trusted)
    except SignatureError as error:
        why = f"is not a signature of these files by a trusted key ({error}); copy the bundle again, or `rlctl sign` it"
        raise BundleError(why, path / SIGNATURE) from error


def card_of(data: bytes, file: Path) -> Card:
    """The card in the bytes of card.json; else BundleError."""
    try:
        return valid(json.loads(data, object_pairs_hook=_once, parse_constant=_no_number), file)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"is not JSON: {first_line(error)}; copy the bundle again", file) from error


def valid(data: object, file: Path) -> Card:
    """A card of plain data; else BundleError."""
    try:
        return validate(Card, data, file)
    except ConfigError as error:
        raise BundleError(f"{error}; {ANEW}") from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return table


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def file_of(folder: Path, name: str) -> bytes:
    """A file of the bundle, whole; links out of the folder are not followed."""
    file, most = folder / name, MOST_BYTES[name]
    try:
        if file.resolve().parent != folder.resolve():
            raise BundleError("is a link out of the bundle; put the file itself there", file)
        # a pipe must not hold us up
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise BundleError("is not a regular file; copy the bundle again", file)
            data = stream.read(most + 1)
    except PermissionError as error:
        raise PermissionMissing(f"{file}: may not be read; run as a user who may, or change its mode") from error
    except (OSError, RuntimeError) as error:  # a link to itself is a RuntimeError
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        inside = folder / "bundle"  # as a training run has it
        way_out = f"a bundle is a folder with {WEIGHTS} and {CARD}"
        if (inside / name).exists():
            way_out = f"did you mean {inside}?"
        raise BundleError(f"cannot be read: {why}; {way_out}", file) from error
    if len(data) > most:
        raise BundleError(f"has more than {most >> 20} MB, which no policy needs; {ANEW}", file)
    return data


def _network(weights: bytes, file: Path) -> Network:
    try:
        return read_network(weights)
    except NetworkError as error:
        raise BundleError(f"{error}; {ANEW}", file) from error


def table_of(network: Network) -> NetworkTable:
    """The network as a card tells it."""
    return NetworkTable(layers=network.layers, activation=network.activation)


def check_tables(card: Card, file: Path) -> None:
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


def check_layers(card: Card, file: Path) -> None:
    """Make sure that the network takes an observation and answers with a number for each move."""
    layers, size, moves = card.network.layers, card.observation.size, len(card.action.moves)
    if (layers[0], layers[-1]) != (size, moves):
        raise BundleError(f"has {layers[0]} inputs and {layers[-1]} outputs, not {size} and {moves}; {ANEW}", file)
