"""A configuration error is one line that names the file, the line and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.envs.yaml_edge import Strict, load_model, parse_yaml
from tests.doubles.yaml_text import load_text


class Cat(Strict):
    kind: Literal["cat"]
    lives: int = 9


class Dog(Strict):
    kind: Literal["dog"]
    name: str


class House(Strict):
    rooms: int = Field(ge=1)
    full_ratio: float = Field(default=0.5, ge=0.0, le=1.0)
    address: dict[str, Cat] = Field(default_factory=dict)
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = Field(default_factory=list)
    doors: tuple[str, ...] = Field(default=("front",), min_length=1, max_length=2)


def test_endless_file_is_told_unread() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: is longer than"):
        load_model(House, Path("/dev/zero"))


def told(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(House, text, "house.yaml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("house.yaml:")
    assert caught.value.exit_code == 78
    return message


def test_reads_a_fitting_file(tmp_path: Path) -> None:
    path = tmp_path / "house.yaml"
    path.write_text("rooms: 2\npets:\n  - kind: dog\n    name: Rex\n", encoding="utf-8")
    house = load_model(House, path)
    assert house.rooms == 2
    assert house.pets == [Dog(kind="dog", name="Rex")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rooms: 1\nrooms: 2\n", ["house.yaml:2:", "'rooms'", "line 1"]),
        ("pets: []\nromms: 2\nrooms: 1\n", ["house.yaml:2:", "unknown key 'romms'", "did you mean 'rooms'?"]),
        ("rooms: 1\nzzz: 2\n", ["house.yaml:2:", "known are address, doors, full_ratio, pets, rooms"]),
        ("pets: []\n", ["house.yaml:1:", "key 'rooms' is missing"]),
        ("rooms: 0\n", ["house.yaml:1:", "rooms is 0"]),
        ("\nrooms: many\n", ["house.yaml:2:", "rooms is 'many'"]),
        ("rooms: 1\nfull_ratio: 85\n", ["house.yaml:2:", "a percentage? write 0.85"]),
        ("rooms: 1\nrooms_: [\n", ["house.yaml:3:", "is not valid YAML"]),
        ("rooms: 1\npets:\n- kind: cat\n  live: 3\n", ["house.yaml:4:", "pets.0.live", "did you mean 'lives'?"]),
        ("rooms: 1\npets:\n- kind: dog\n", ["house.yaml:3:", "'pets.0.name' is missing"]),
        ("rooms: 1\npets:\n- kind: cow\n", ["house.yaml:3:", "'cow'"]),
        ("rooms: 1\naddress:\n  a: {kind: cat, lifes: 1}\n", ["house.yaml:3:", "did you mean 'lives'?"]),
        ("rooms: 1\ndoors: []\n", ["house.yaml:2: doors is []: should have at least 1 item, not 0"]),
        ("rooms: 1\ndoors: [a, b, c]\n", [": should have at most 2 items, not 3"]),
        ("- 1\n", ["house.yaml:1:", "not a list"]),
        ("rooms: 1\n---\nrooms: 2\n", ["is not valid YAML"]),
        ("rooms: &a 1\npets: *a\n", ["house.yaml:2:", "aliases"]),
        ("rooms: 2026-99-99\n", ["house.yaml:", "is not valid YAML"]),
        ("rooms: \x01\n", ["house.yaml:", "is not valid YAML"]),
        ("rooms: !!python/object:os.system 1\n", ["house.yaml:1:", "is not valid YAML"]),
        ("? [a]\n: 1\n", ["house.yaml:1:", "is not valid YAML"]),
        ("rooms: " + "[" * 3000, ["nested too deeply"]),
        ("rooms: -1\nfull_ratio: 2\n", ["(1 more after this one)"]),
    ],
)
def test_says_what_and_where(text: str, parts: list[str]) -> None:
    message = told(text)
    assert all(part in message for part in parts), message


def test_models_own_rule_is_told_plainly() -> None:
    class Pair(Strict):
        low: float
        high: float

        def model_post_init(self, _: object) -> None:
            if self.low > self.high:
                raise ValueError("low is above high; swap them")

    with pytest.raises(ConfigError, match=r"^p:1: low is above high; swap them$"):
        load_text(Pair, "low: 2\nhigh: 1\n", "p")


def test_scientific_notation_is_a_number() -> None:
    assert parse_yaml("a: 1e6\nb: 2.5e-4\nc: -1E3\nd: 1e\n", "x")[0] == {"a": 1e6, "b": 2.5e-4, "c": -1e3, "d": "1e"}


def test_an_empty_file_is_an_empty_mapping() -> None:
    assert parse_yaml("# nothing\n", "x") == ({}, {(): 1})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_model(House, tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="directory"):
        load_model(House, tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"rooms: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_model(House, tmp_path / "binary.yaml")


@pytest.mark.usefixtures("no_privilege")
def test_a_file_without_permission_exits_77(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("rooms: 1\n", encoding="utf-8")
    path.chmod(0)
    with pytest.raises(PermissionMissing):
        load_model(House, path)


@given(st.text(max_size=80))
def test_any_text_is_mapping_or_one_line(text: str) -> None:
    complaint = ""
    try:
        data, lines = parse_yaml(text, "any")
    except ConfigError as error:
        complaint = str(error)
    assert len(complaint.splitlines()) == 1 or (isinstance(data, dict) and () in lines)


KEYS = st.text("abc", min_size=1, max_size=3)


@given(
    st.recursive(
        st.integers() | st.text("xyz "), lambda s: st.lists(s, max_size=3) | st.dictionaries(KEYS, s, max_size=3)
    )
)
def test_every_key_has_the_line_it_stands_on(value: object) -> None:
    text = yaml.safe_dump({"top": value}, default_flow_style=False)
    data, lines = parse_yaml(text, "any")
    assert data == {"top": value}
    for key, line in lines.items():
        if key and isinstance(key[-1], str):
            assert f"{key[-1]}:" in text.splitlines()[line - 1].replace("'", "").replace('"', "")
