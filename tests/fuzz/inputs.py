"""What may come: valid files with a few things changed, and values that nobody expects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

NASTY: tuple[bytes, ...] = (
    b"", b"0", b"-0", b"-1", b"1", b"2", b"1.5", b"-0.001", b"1e400", b"-1e400", b"1e308", b"5e-324", b"nan", b"inf",
    b"-inf", b".nan", b".inf", b"NaN", b"Infinity", b"9" * 19, b"18446744073709551616", b"9" * 400, b"9" * 5000,
    b"0x" + b"f" * 5000, b"1_000", "٣".encode(), b"0-8191", b"8192", b"0-99999999", b"3-1", b",", b"max", b"-", b"+1",
    b"null", b"~", b"true", b"[]", b"{}", b"[[1]]", b'{"a":1}', b'""', b'"\\u0000"', b'"\\ud800"', b"\0", b"\n",
    b"\r\n", b"\t", b" ", b"\x1b[31m", b"\xff\xfe", b"\xe2\x80\xa8",
    b"'", b'"', b"\\", b"[" * 300, b"{", b"}", b"]", b":", b"%",
    b"../../etc/passwd", b"/proc/self/mem", b"1:60:60", b"2024-13-45", b"0b", b"0x", b"0o9", b"1e5",
)  # fmt: skip
"""For any format."""

_TOKEN = re.compile(rb"[\w.+-]+")

_numbers = st.sampled_from(
    [0, -1, 1, 2, 3, 95, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.0, -0.0, 0.5, 1.5, -0.001, 1e-320, 1e308,
     float("nan"), float("inf"), float("-inf"), 1e15, 1e16]
)  # fmt: skip
_words = st.sampled_from(
    ["", "0", "nan", "-inf", "inf", "1e400", "max", "frozen", "ppo", "heracles", "\0", "\ud800", "a\nb", "\x1b[31m",
     "x" * 5000, "/", "../..", "http://127.0.0.1:1/", "/dev/zero", "safe", "٣"]
)  # fmt: skip
_plain = st.one_of(st.none(), st.booleans(), _numbers, _words, st.integers(), st.floats(), st.text(max_size=6))

VALUES: st.SearchStrategy[Any] = st.one_of(
    _plain,
    st.lists(_plain, max_size=3),
    st.dictionaries(st.sampled_from(["a", "kind", "name", "value", "path"]), _plain, max_size=3),
    st.sampled_from(["[[[[1]]]]", '{"a": {"a": {}}}', f"[{'0,' * 300}0]"]).map(json.loads),
)
"""Anything that JSON can say, and NaN and infinities."""


def mutated(corpus: Sequence[bytes], tokens: Sequence[bytes] = (), edits: int = 4) -> st.SearchStrategy[bytes]:
    """Valid texts with a few edits: bytes put in, words exchanged, lines dropped, doubled and swapped, ends cut off.

    Args:
        corpus: Valid texts.
        tokens: Words of the format, besides NASTY.
        edits: Most of them; there may be none.
    """
    texts_, words = st.sampled_from(corpus), st.sampled_from((*tokens, *NASTY))

    @st.composite
    def draw_one(draw: st.DrawFn) -> bytes:
        data = draw(texts_)
        for _ in range(draw(st.integers(0, edits))):
            edit = EDITS[draw(st.integers(0, len(EDITS) - 1))]
            data = edit(data, draw(st.integers(0, 1 << 16)), lambda: draw(words))
        return data

    return draw_one()


def altered(corpus: Sequence[Any], values: st.SearchStrategy[Any] = VALUES) -> st.SearchStrategy[Any]:
    """Valid documents (as JSON decodes them) with up to three values exchanged, keys dropped or added."""

    texts_ = st.sampled_from([json.dumps(one) for one in corpus])

    @st.composite
    def draw_one(draw: st.DrawFn) -> Any:
        document = json.loads(draw(texts_))
        for _ in range(draw(st.integers(1, 3))):
            _alter(document, draw, values)
        return document

    return draw_one()


def texts(corpus: Sequence[bytes], tokens: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """Mutations of a corpus, and now and then any bytes at all."""
    return st.one_of(mutated(corpus, tokens), mutated(corpus, tokens), mutated(corpus, tokens), st.binary(max_size=200))


def _alter(document: Any, draw: st.DrawFn, values: st.SearchStrategy[Any]) -> None:
    """One change at a place that is met by walking down at random."""
    while document:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        key = keys[draw(st.integers(0, len(keys) - 1))]
        deeper = document[key]
        if isinstance(deeper, (dict, list)) and deeper and draw(st.integers(0, 9)):
            document = deeper
            continue
        what = draw(st.integers(0, 7))
        if what == 0:
            del document[key]
        elif what == 1 and isinstance(document, dict):
            document[draw(st.sampled_from(["x", "", "kind", "\0", str(key).upper(), "a\nb"]))] = draw(values)
        elif what == 2 and isinstance(document, list):
            document.append(deeper)
        else:
            document[key] = draw(values)
        return


def _put_in(data: bytes, at: int, word: Callable[[], bytes]) -> bytes:
    at %= len(data) + 1
    return data[:at] + word() + data[at:]


def _put_over(data: bytes, at: int, word: Callable[[], bytes]) -> bytes:
    at, new = at % (len(data) + 1), word()
    return data[:at] + new + data[at + len(new) :]


def _exchange(data: bytes, at: int, word: Callable[[], bytes]) -> bytes:
    found = list(_TOKEN.finditer(data))
    if not found:
        return data + word()
    one = found[at % len(found)]
    return data[: one.start()] + word() + data[one.end() :]


def _flip(data: bytes, at: int, _word: Callable[[], bytes]) -> bytes:
    if not data:
        return data
    at, bit = at // 8 % len(data), at % 8
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def _cut(data: bytes, at: int, _word: Callable[[], bytes]) -> bytes:
    return data[: at % (len(data) + 1)]


def _drop(data: bytes, at: int, _word: Callable[[], bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        del lines[at % len(lines)]
    return b"".join(lines)


def _double(data: bytes, at: int, _word: Callable[[], bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        lines.insert(at // 256 % len(lines), lines[at % len(lines)])
    return b"".join(lines)


def _swap(data: bytes, at: int, _word: Callable[[], bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        one, other = at % len(lines), at // 256 % len(lines)
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


EDITS = (_exchange, _exchange, _exchange, _put_in, _put_over, _flip, _flip, _cut, _drop, _double, _swap)
