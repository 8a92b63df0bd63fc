"""Bundles whose author means harm: cards and weights changed, arrays that claim too much, files beside, pickles.

A bundle is refused in one line of ours, or taken; taken, its policy answers every observation with a move of the
table or a refusal, and what the shield makes of it is within the shield's bounds. Nothing is unpickled or run, no file
but the two is opened (inotify).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlctl.agents.served import bundle
from rlctl.agents.served.bundle_writer import as_file, save
from rlctl.agents.served.card import CardParts, ObservationTable, TrainedOn, Training
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.agents.served.network import Network, NetworkError, read_network
from rlctl.envs.actions import MOVES, decode
from rlctl.envs.errors import RlctlError
from rlctl.envs.observation import Observer
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.envs.workload import Weight
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.fuzz import inputs
from tests.fuzz.engine import Case, Target, refusal
from tests.fuzz.shielded import LIMITS
from tests.fuzz.watch import Touched, guarded

SIZE, WIDTH = ObservationTable.here((0,)).size, len(MOVES)
_RNG = np.random.default_rng(0)
_SOUND = (
    Network(
        (_RNG.normal(size=(8, SIZE)).astype(np.float32), _RNG.normal(size=(WIDTH, 8)).astype(np.float32)),
        (np.zeros(8, np.float32), np.zeros(WIDTH, np.float32)),
        "tanh",
    ),
    Network((_RNG.normal(size=(WIDTH, SIZE)).astype(np.float32),), (np.zeros(WIDTH, np.float32),), "relu"),
)
NETWORKS = tuple(as_file(one) for one in _SOUND)


def _card() -> dict[str, Any]:
    """What `save` writes."""
    import tempfile

    plant = TrainedOn(profile="thesis-host", digest="0" * 12, weight=Weight.MINIMUM, work=0.12, hosts=4)
    run = Training(total_timesteps=1, wall_seconds=1.0, seed=1, code="x", training_id="0" * 64)
    parts = CardParts(algorithm="PPO", tick_seconds=1.0, lags=(0,), plants=(plant,), training=run)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "b", "tiny", parts, _SOUND[0])
        return dict(json.loads((Path(folder) / "b/card.json").read_text()))


CARD = _card()
CARD_TEXT = json.dumps(CARD, indent=1).encode()

_SIDES = st.sampled_from([0, 1, 2, 8, SIZE, WIDTH, 4096, 4097, 2**31, 2**63 - 1])
_NUMBERS = st.sampled_from([0.1, 0.0, np.nan, np.inf, 3e38])
_TYPES = st.sampled_from(["<f4", "<f4", "<f4", "<f8", ">f4", "<i4", "|O", "|V8", "u1"])
_NAMES = st.sampled_from(
    ["weight0", "bias0", "weight1", "bias1", "activation", "../outside", "/etc/passwd", "weight-1", "w" * 300, ""]
)


def _header(shape: tuple[int, ...], kind: str, fortran: bool) -> bytes:
    """The beginning of a .npy member, which may claim anything."""
    text = f"{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@st.composite
def _members(draw: st.DrawFn) -> tuple[str, bytes]:
    name, number = draw(_NAMES), draw(_NUMBERS)
    shape = draw(st.sampled_from([(8, SIZE), (8,), (WIDTH, 8), (WIDTH,), (WIDTH, SIZE), (1, 1), (0,), (SIZE, 8)]))
    content = np.full(shape, number, np.float32).tobytes()
    if draw(st.integers(0, 2)) == 0:  # claims and content need not agree
        shape = tuple(draw(st.lists(_SIDES, max_size=3)))
        header = _header(shape, draw(_TYPES), draw(st.booleans()))
        return name, header + draw(st.sampled_from([content, b"", b"\x80\x04."]))
    return name, _header(shape, "<f4", False) + content


@st.composite
def _archives(draw: st.DrawFn) -> bytes:
    """A network put together from parts that may or may not fit."""
    activation = draw(st.sampled_from([b"tanh", b"relu", b"os.system", b""]))
    members = [("activation", _header((len(activation),), "|u1", False) + activation)]
    members += draw(st.lists(_members(), max_size=5))
    file = io.BytesIO()
    compression = draw(st.sampled_from([zipfile.ZIP_STORED] * 4 + [zipfile.ZIP_DEFLATED]))
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", compression) as archive:
        warnings.simplefilter("ignore")  # one name twice is what is tried
        for name, content in members:
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


class _Harm:
    """Leaves a mark where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (MARK,)


MARK = "rlctl-fuzz-was-here"
HARMFUL: Mapping[str, bytes] = {
    "policy.pkl": pickle.dumps(_Harm()), "model.zip": b"PK\x03\x04", "data.pkl": pickle.dumps(_Harm()),
    "__init__.py": f"import os; os.mkdir({MARK!r})".encode(),
    "sitecustomize.py": f"import os; os.mkdir({MARK!r})".encode(),
    "beside.bin": struct.pack("<8f", *range(8)), "card.json.part": b"{",
}  # fmt: skip

_network = st.one_of(inputs.texts(NETWORKS), _archives(), st.sampled_from(NETWORKS), st.sampled_from(NETWORKS))
_card_text = st.one_of(
    inputs.texts((CARD_TEXT,)), inputs.altered([CARD]).map(lambda one: json.dumps(one).encode()), st.just(CARD_TEXT)
)
CASES = st.one_of(
    st.fixed_dictionaries({"weights.npz": _network, "fits": st.just(b"1")}),
    st.fixed_dictionaries({"weights.npz": _network, "fits": st.just(b"1")}),
    st.fixed_dictionaries({"card.json": _card_text, "weights.npz": st.sampled_from(NETWORKS)}),
    st.fixed_dictionaries({"card.json": _card_text, "weights.npz": _network}),
    st.fixed_dictionaries(
        {
            "card.json": st.just(CARD_TEXT), "weights.npz": st.just(NETWORKS[0]),
            "link": st.sampled_from([b"weights.npz", b"card.json"]),
            "to": st.sampled_from(
                [b"../outside", b"policy.pkl", b"card.json", b"weights.npz", b".", b"..", b"/dev/zero"]
            ),
        }
    ),
)  # fmt: skip


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Callable[[Case], str]]:
    """A bundle's folder with harmful files in it, and one file outside."""
    home = folder / "bundle"
    home.mkdir()
    outside = folder / "outside"
    outside.write_bytes(NETWORKS[0])
    for name, data in HARMFUL.items():
        (home / name).write_bytes(data)
    touched = Touched([outside, *(home / name for name in HARMFUL if name != "policy.pkl")])
    with contextlib.chdir(folder):

        def check(case: Case) -> str:
            _lay_out(home, case)
            touched.any()
            with guarded(home):
                outcome = _used(home)
            assert not touched.any(), "a file beside or outside the bundle was opened"
            assert not Path(MARK).exists(), "something was run"
            return outcome

        yield check
    touched.close()


def _lay_out(home: Path, case: Case) -> None:
    for name in ("card.json", "weights.npz"):
        with contextlib.suppress(FileNotFoundError):
            (home / name).unlink()
        (home / name).write_bytes(_fitting(case["weights.npz"]) if name not in case else case[name])
    if "link" in case:
        link = home / case["link"].decode()
        link.unlink()
        link.symlink_to(case["to"].decode())


def _fitting(policy: bytes) -> bytes:
    """A card that says of a network what is so, as its author would see to."""
    card = {**CARD, "policy_sha256": hashlib.sha256(policy).hexdigest()}
    with contextlib.suppress(NetworkError):
        network = read_network(policy)
        card["network"] = {"layers": network.layers, "activation": network.activation}
    return json.dumps(card).encode()


def _used(home: Path) -> str:
    """Load it, and let it decide twice."""
    try:
        policy = LearnedPolicy(bundle.load(home))
    except RlctlError as error:
        return refusal(error)
    policy.start(LIMITS)
    shield, observer, current = Shield(load_profile("responsive"), LIMITS), Observer(LIMITS, 1.0), LIMITS.safe
    for second, tail in enumerate((0.004, 0.02, float("nan"))):
        seen = Telemetry(float(second), 0.01, Quantile(tail, 0.0, 500, 1.0), load_ratio=Value(0.3))
        observation = observer.observe(seen, current, shield.mask(seen, current))
        try:
            move = policy.act(observation)
        except RlctlError as error:
            return f"taken, then {refusal(error)}"
        assert isinstance(move, int)
        assert 0 <= move < len(MOVES)
        assert isinstance(policy.note, str)
        proposed = decode(move, current, LIMITS)
        verdict = shield.rule(seen, current, proposed)
        assert verdict.allocation.at_most(proposed)
        assert all(verdict.allocation.at_most(bound.most) for bound in verdict.bounds)
        current = verdict.allocation
    return "accepted"


TARGET = Target("bundles", CASES, opened)
