"""The keys of a YAML file as Markdown, from the pydantic model that reads it."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlctl.config.fields import attributes, summary

UNITS = {
    "bytes_per_second": "bytes per second",
    "megabytes_per_second": "megabytes per second",
    "ratio_per_second": "share per second (1 is the whole)",
    "per_second": "per second",
    "per_hour": "per hour",
    "milliseconds": "milliseconds",
    "seconds": "seconds",
    "minutes": "minutes",
    "hours": "hours",
    "hour": "hour of the day",
    "percent": "percent",
    "points": "percentage points",
    "ratio": "ratio (1 is the whole)",
    "cpus": "CPUs",
    "bytes": "bytes",
    "rps": "requests per second",
    "ticks": "ticks",
    "watts": "watts",
    "mb": "2^20 bytes",
}
"""By the end of a key's name."""


class Key:
    """One key.

    Attributes:
        path: From the top of the file, dotted.
        kind: What may stand there, in words.
        unit: Its unit, or nothing.
        default: As JSON, or nothing where the key must be given.
        text: What it means.
        model: The sections below it: what holds them, such as a list, stands in `kind`.
    """

    def __init__(self, path: str, name: str, owner: type[BaseModel], field: FieldInfo) -> None:
        self.path = path
        schema = _schema(owner)
        said = schema["properties"].get(field.alias or name, {})
        self.kind = _kind(said, schema.get("$defs", {}))
        self.unit = _unit(name)
        self.default = "" if field.is_required() else _default(field)
        self.text = field.description or attributes(owner).get(name) or _texts(owner).get(name, "")
        self.model = nested(field.annotation)
        if not self.text and self.model:
            self.text = section_text(self.model[0])

    @property
    def facts(self) -> str:
        """Kind, unit and default in a line."""
        needed = f"default {self.default}" if self.default else "required"
        return ", ".join(filter(None, (self.kind, self.unit, needed)))


def keys(model: type[BaseModel], above: str = "") -> Iterator[Key]:
    """The keys of a section, without those below them."""
    for name, field in model.model_fields.items():
        yield Key(f"{above}.{name}".lstrip("."), name, model, field)


def nested(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The models in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(dict.fromkeys(one for part in get_args(annotation) for one in nested(part)))


def member_texts(documented: type) -> dict[str, str]:
    """What stands in a string below each member of an enumeration or field of a class, by name."""
    return _texts(documented)


@cache
def _texts(documented: type) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in reversed(documented.__mro__):
        if one.__module__.startswith("rlctl."):
            body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0].body  # type: ignore[attr-defined]
            for member, after in pairwise(body):
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    target = member.targets[0] if isinstance(member, ast.Assign) else getattr(member, "target", None)
                    if isinstance(target, ast.Name):
                        found[target.id] = " ".join(str(after.value.value).split())
    return found


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(mode="validation")


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "its keys' defaults"
    if isinstance(value, (tuple, frozenset)):
        value = list(value)
    plain = value if isinstance(value, (bool, int, float, str, list, dict)) else str(value)
    return f"`{json.dumps(plain, default=str)}`"


def _unit(name: str) -> str:
    return next((words for end, words in UNITS.items() if name == end or name.endswith(f"_{end}")), "")


def _kind(said: dict[str, Any], known: dict[str, Any]) -> str:
    """A JSON schema in words."""
    if "$ref" in said:
        return _kind(known.get(said["$ref"].rpartition("/")[2], {}), known)
    if "const" in said:
        return f"`{said['const']}`"
    if "enum" in said:
        return " or ".join(f"`{one}`" for one in said["enum"])
    if options := said.get("anyOf") or said.get("oneOf"):
        words = (_kind(one, known) for one in options if one.get("type") != "null")
        return " or ".join(dict.fromkeys(filter(None, words)))
    return _plain(said, known)


def _plain(said: dict[str, Any], known: dict[str, Any]) -> str:
    kind = said.get("type")
    if kind in ("integer", "number"):
        return ("whole number" if kind == "integer" else "number") + _range(said)
    if kind == "array":
        items: dict[str, Any] = said.get("items", {}) or next(iter(said.get("prefixItems", [])), {})
        return f"list of {_kind(items, known) or 'values'}"
    if kind == "object" and "properties" not in said:
        inner = _kind(said["additionalProperties"], known) if isinstance(said.get("additionalProperties"), dict) else ""
        return f"mapping of names to {inner or 'values'}"
    plain = {"boolean": "`true` or `false`", "object": "section", "string": "text"}
    return "path" if said.get("format") == "path" else plain.get(str(kind), "")


def _range(said: dict[str, Any]) -> str:
    low = next(
        (
            word + f"{said[key]:g}"
            for key, word in (("minimum", "from "), ("exclusiveMinimum", "above "))
            if key in said
        ),
        "",
    )
    high = next(
        (word + f"{said[key]:g}" for key, word in (("maximum", "to "), ("exclusiveMaximum", "below ")) if key in said),
        "",
    )
    return f" {low} {high}".rstrip().replace("  ", " ")


def section_text(documented: type) -> str:
    """What a section is, or any class: its docstring without attributes, on one line."""
    return " ".join(summary(documented).split())
