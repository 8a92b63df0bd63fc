"""Types of single values in a configuration, each refusing the slip that its unit invites; and what docstrings say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rlctl.envs.host.decode import MOST_CPUS, parse_cpus
from rlctl.envs.yaml_edge import Strict


def _cpus(value: object) -> object:
    """`0-3,6` or a list; a list keeps its order, which is the order in which BE is given CPUs."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, str):
        value = [cpu for part in value.split(",") for cpu in sorted(parse_cpus(part))]
    if isinstance(value, (list, tuple)) and len(set(map(str, value))) < len(value):
        raise ValueError(f"{list(value)} names a CPU twice")
    return value


_URL = r"^https?://[^/\s]+"


def _url(value: object) -> object:
    if isinstance(value, str) and not re.match(_URL, value):
        raise ValueError(f"{value!r} is not an http or https URL, such as http://127.0.0.1:8080/metrics")
    return value


QuantilePercent = Annotated[float, Field(ge=50.0, lt=100.0)]
Cpus = Annotated[
    tuple[Annotated[int, Field(ge=0, le=MOST_CPUS)], ...],
    Field(min_length=1),
    BeforeValidator(_cpus, json_schema_input_type=str | int | list[int]),
]
Url = Annotated[str, Field(pattern=_URL), BeforeValidator(_url)]


_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):\n", re.MULTILINE)
_NAMES = re.compile(r"^    (?P<names>[a-z_0-9]+(, [a-z_0-9]+)*): (?P<text>.*)")


def summary(documented: type) -> str:
    """The docstring without its sections."""
    return _SECTION.split(inspect.cleandoc(_own(documented)))[0].strip()


def attributes(documented: type) -> dict[str, str]:
    """What `Attributes:` and `Args:` of a class and of those it is made of say, by name, each on one line."""
    return {name: text for one in reversed(documented.__mro__) for name, text in _attributes(_own(one))}


def _own(documented: type) -> str:
    return documented.__dict__.get("__doc__") or ""  # `python -OO` has none


def _attributes(docstring: str) -> Iterator[tuple[str, str]]:
    parts = _SECTION.split(inspect.cleandoc(docstring))
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title not in ("Args", "Attributes"):
            continue
        for entry in re.split(r"\n(?=    \S)", body.rstrip()):
            if found := _NAMES.match("    " + " ".join(entry.split())):
                yield from ((name, found["text"]) for name in found["names"].split(", "))


def _describe_schema(schema: dict[str, Any], section: type[BaseModel]) -> None:
    """Add to a section's schema what its docstring says of it and of each key; a key of one value shows that value."""
    if text := summary(section):
        schema["description"] = text
    texts = attributes(section)
    for name, key in schema.get("properties", {}).items():
        if name in texts:
            key["description"] = texts[name]
        elif "const" in key:
            key["description"] = f"`{key['const']}`."


class Described(Strict):
    """Base of every section of the configuration: the schema of a section says what its docstring says."""

    model_config = ConfigDict(json_schema_extra=_describe_schema)
