"""Types of single values in a configuration, each refusing the slip that its unit invites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema

from rlctl.config.docstrings import attributes, summary
from rlctl.envs.host.cpulist import MOST_CPUS
from rlctl.envs.units import Percent
from rlctl.envs.yaml_edge import Strict

__all__ = ["Cpus", "Described", "Name", "QuantilePercent", "Url"]


def _quantile(value: object) -> Percent:
    """A tail quantile in percent; 0.95 and 950 are both slips of the unit."""
    if isinstance(value, Percent):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is no number of percent, such as 95")
    if not 50.0 <= value < 100.0:
        hint = f" (a ratio? write {value * 100:g})" if 0.5 <= value < 1.0 else ""
        raise ValueError(f"{value:g} is no tail quantile from 50 to below 100 percent{hint}")
    return Percent(float(value))


def _cpus(value: object) -> object:
    """`0-3,6` or a list; a list keeps its order, which is the order in which BE is given CPUs."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, str):
        value = list(_parsed(value))
    if isinstance(value, (list, tuple)) and len(set(map(str, value))) < len(value):
        raise ValueError(f"{list(value)} names a CPU twice")
    return value


def _parsed(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or (dash and int(last) < int(first)):
            raise ValueError(f"{text!r} is no list of CPUs such as 0-2,5")
        yield from range(int(first), min(int(last if dash else first), MOST_CPUS) + 1)


_URL = r"^https?://[^/\s]+"


def _url(value: object) -> object:
    if isinstance(value, str) and not re.match(_URL, value):
        raise ValueError(f"{value!r} is no http or https URL, such as http://127.0.0.1:8080/metrics")
    return value


QuantilePercent = Annotated[
    Percent,
    PlainValidator(_quantile),
    PlainSerializer(lambda percent: percent.value, return_type=float),
    WithJsonSchema({"type": "number", "minimum": 50, "exclusiveMaximum": 100}),
]
Cpus = Annotated[
    tuple[Annotated[int, Field(ge=0, le=MOST_CPUS)], ...],
    Field(min_length=1),
    BeforeValidator(_cpus, json_schema_input_type=str | int | list[int]),
]
Name = Annotated[str, Field(min_length=1)]
Url = Annotated[str, Field(pattern=_URL), BeforeValidator(_url)]


def _described(schema: dict[str, Any], section: type[BaseModel]) -> None:
    """A section's schema with what its docstring says of each key."""
    if said := summary(section):
        schema["description"] = said
    for name, text in attributes(section).items():
        if name in schema.get("properties", {}):
            schema["properties"][name]["description"] = text


class Described(Strict):
    """Base of every section: its schema says what its docstring says."""

    model_config = ConfigDict(json_schema_extra=_described)
