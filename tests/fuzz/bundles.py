"""Bundles whose author means harm: cards and networks changed, foreign operators, files beside, links, pickles.

A bundle is refused in one line of ours, or taken; taken, its policy answers every observation with a move of the
table or a refusal, and what the shield makes of it is within the shield's bounds. Nothing is unpickled or run, no file
but the two is opened by Python, and none of the others by the runtime either (inotify).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlctl.agents.served import bundle, network
from rlctl.agents.served.card import CardParts, ObservationTable, TrainedOn, Training
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.agents.served.onnx_graph import GraphError, read_graph
from rlctl.envs.actions import MOVES, decode
from rlctl.envs.errors import RlctlError
from rlctl.envs.observation import Observer
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.envs.workload import Weight
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.conftest import field, linear, model, node, port, tensor
from tests.fuzz import inputs
from tests.fuzz.engine import Case, Target, refusal
from tests.fuzz.shielded import LIMITS
from tests.fuzz.watch import Touched, guarded

SIZE, WIDTH = ObservationTable.here((0,)).size, len(MOVES)
_RNG = np.random.default_rng(0)
_INPUT, _OUTPUT = [port("observation", ("n", SIZE))], [port("logits", ("n", WIDTH))]


def _deep() -> bytes:
    """Two layers, as the shipped ones have."""
    transposed = field(5, field(1, "transB") + field(3, 1) + field(20, 2))
    nodes = [
        node("Gemm", ("observation", "w", "b"), "h", transposed), node("Tanh", ("h",), "t"),
        node("Gemm", ("t", "v", "c"), "logits", transposed),
    ]  # fmt: skip
    shapes = {"w": (8, SIZE), "b": (8,), "v": (WIDTH, 8), "c": (WIDTH,)}
    return model(nodes, [tensor(name, _RNG.normal(size=shape)) for name, shape in shapes.items()], _INPUT, _OUTPUT)


NETWORKS = (_deep(), linear(_RNG.normal(size=(WIDTH, SIZE)), np.zeros(WIDTH)))


def _card() -> dict[str, Any]:
    """What `save` writes."""
    import tempfile

    plant = TrainedOn(profile="thesis-host", digest="0" * 12, weight=Weight.MINIMUM, work=0.12, hosts=4)
    run = Training(total_timesteps=1, wall_seconds=1.0, seed=1, code="x", training_id="0" * 64)
    parts = CardParts(algorithm="PPO", tick_seconds=1.0, lags=(0,), plants=(plant,), training=run)
    with tempfile.TemporaryDirectory() as folder:
        bundle.save(Path(folder) / "b", "tiny", parts, NETWORKS[0])
        return dict(json.loads((Path(folder) / "b/card.json").read_text()))


CARD = _card()
CARD_TEXT = json.dumps(CARD, indent=1).encode()

_OPERATORS = st.sampled_from(
    ["Gemm", "MatMul", "Add", "Tanh", "Relu", "Identity", "Sigmoid", "Elu", "LeakyRelu", "Loop", "If", "Scan", "PyOp",
     "Reshape", "Concat", "Expand", "ConstantOfShape", "RandomNormal", "Softmax", "Cast", ""]
)  # fmt: skip
_NAMES = st.sampled_from(["observation", "logits", "w", "b", "h", "t", "v", "c", "", "nowhere", "/etc/passwd"])
_SIDES = st.sampled_from([0, 1, 2, 8, SIZE, WIDTH, 1024, 1025, 2**31, 2**63 - 1, 2**64 - 1])
_OUTSIDE = st.sampled_from(["../outside", "outside.bin", "beside.bin", "/etc/passwd"])


@st.composite
def _attributes(draw: st.DrawFn) -> bytes:
    kinds = (
        lambda: field(1, draw(_NAMES)) + field(3, draw(st.integers(0, 2**64 - 1))) + field(20, 2),
        lambda: field(1, "transB") + field(3, draw(st.integers(0, 2))) + field(20, 2),
        lambda: field(1, "alpha") + field(2, draw(st.sampled_from([1.0, 0.0, float("nan"), 1e38]))) + field(20, 1),
        lambda: field(1, "body") + field(draw(st.sampled_from([4, 5, 6, 10, 11])), b"") + field(20, 5),
    )
    return b"".join(field(5, kinds[draw(st.integers(0, 3))]()) for _ in range(draw(st.integers(0, 2))))


@st.composite
def _tensors(draw: st.DrawFn) -> bytes:
    shape = draw(st.sampled_from([(8, SIZE), (8,), (WIDTH, 8), (WIDTH,), (WIDTH, SIZE), (1, 1), (0,), (SIZE, 8)]))
    array = np.full(shape, draw(st.sampled_from([0.1, 0.0, np.nan, np.inf, 3e38])), np.float32)
    if draw(st.integers(0, 4)):
        return tensor(draw(_NAMES), array)
    sides = b"".join(field(1, draw(_SIDES)) for _ in range(draw(st.integers(0, 3))))
    outside = field(13, field(1, "location") + field(2, draw(_OUTSIDE))) + field(14, 1)
    raw = field(9, draw(st.binary(max_size=40)))
    return (
        sides + field(2, draw(st.integers(0, 16))) + field(8, draw(_NAMES)) + draw(st.sampled_from([outside, raw, b""]))
    )


@st.composite
def _graphs(draw: st.DrawFn) -> bytes:
    """A network put together from parts that may or may not fit."""
    if draw(st.integers(0, 3)) == 0:  # a sound chain of odd operators
        chain = [draw(_OPERATORS) for _ in range(draw(st.integers(1, 4)))]
        nodes = [
            node("Gemm", ("observation", "w", "b"), "h0", field(5, field(1, "transB") + field(3, 1) + field(20, 2)))
        ]
        nodes += [node(name, (f"h{n}",), f"h{n + 1}") for n, name in enumerate(chain)]
        nodes += [node("Identity", (f"h{len(chain)}",), "logits")]
        weights = [tensor("w", np.ones((WIDTH, SIZE))), tensor("b", np.zeros(WIDTH))]
        return model(nodes, weights, _INPUT, _OUTPUT)
    nodes = [
        node(
            draw(_OPERATORS), [draw(_NAMES) for _ in range(draw(st.integers(0, 3)))], draw(_NAMES), draw(_attributes())
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    tensors = [draw(_tensors()) for _ in range(draw(st.integers(0, 3)))]
    ports = st.tuples(_NAMES, st.lists(st.one_of(_SIDES, st.just("n")), max_size=3)).map(lambda one: port(*one))
    sides_in, sides_out = (draw(st.one_of(st.just(sound), st.lists(ports, max_size=2))) for sound in (_INPUT, _OUTPUT))
    opset, domain = draw(st.sampled_from([17, 13, 8, 0, 10**6])), draw(st.sampled_from(["", "", "", "com.microsoft"]))
    return model(nodes, tensors, sides_in, sides_out, opset=opset, domain=domain)


class _Harm:
    """Leaves a mark where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (MARK,)


MARK = "rlctl-fuzz-was-here"
HARMFUL: Mapping[str, bytes] = {
    "policy.pkl": pickle.dumps(_Harm()), "model.zip": b"PK\x03\x04", "data.pkl": pickle.dumps(_Harm()),
    "__init__.py": f"import os; os.mkdir({MARK!r})".encode(),
    "sitecustomize.py": f"import os; os.mkdir({MARK!r})".encode(),
    "beside.bin": struct.pack("<8f", *range(8)), "policy.onnx.data": b"\0" * 64, "card.json.part": b"{",
}  # fmt: skip

_network = st.one_of(inputs.texts(NETWORKS), _graphs(), _graphs(), st.sampled_from(NETWORKS))
_card_text = st.one_of(
    inputs.texts((CARD_TEXT,)), inputs.altered([CARD]).map(lambda one: json.dumps(one).encode()), st.just(CARD_TEXT)
)
CASES = st.one_of(
    st.fixed_dictionaries({"policy.onnx": _network, "fits": st.just(b"1")}),
    st.fixed_dictionaries({"policy.onnx": _network, "fits": st.just(b"1")}),
    st.fixed_dictionaries({"card.json": _card_text, "policy.onnx": st.sampled_from(NETWORKS)}),
    st.fixed_dictionaries({"card.json": _card_text, "policy.onnx": _network}),
    st.fixed_dictionaries(
        {
            "card.json": st.just(CARD_TEXT), "policy.onnx": st.just(NETWORKS[0]),
            "link": st.sampled_from([b"policy.onnx", b"card.json"]),
            "to": st.sampled_from(
                [b"../outside", b"policy.pkl", b"card.json", b"policy.onnx", b".", b"..", b"/dev/zero"]
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
    network.logits_of(NETWORKS[0], np.zeros((1, SIZE), np.float32))  # imports the runtime
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
    for name in ("card.json", "policy.onnx"):
        with contextlib.suppress(FileNotFoundError):
            (home / name).unlink()
        (home / name).write_bytes(_fitting(case["policy.onnx"]) if name not in case else case[name])
    if "link" in case:
        link = home / case["link"].decode()
        link.unlink()
        link.symlink_to(case["to"].decode())


def _fitting(policy: bytes) -> bytes:
    """A card that says of a network what is so, as its author would see to."""
    card = {**CARD, "policy_sha256": hashlib.sha256(policy).hexdigest()}
    with contextlib.suppress(GraphError):
        card["graph"] = read_graph(policy).model_dump(mode="json")
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
