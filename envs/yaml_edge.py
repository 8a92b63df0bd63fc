"""The YAML edge: text becomes a checked model here, or one line that says what is wrong, where, and the way out.

Beyond `yaml.safe_load` it refuses duplicate keys, of which PyYAML keeps the last in silence, and aliases, which may
expand without end. It reads `1e6` as a number, and knows the line of every key.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from rlctl.envs.errors import ConfigError, meant, reading

T = TypeVar("T", bound=BaseModel)


class Strict(BaseModel):
    """A part of a YAML file: unknown keys are errors, numbers are finite, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from error
    return pattern


Name = Annotated[str, Field(min_length=1)]
Regex = Annotated[str, Field(min_length=1), AfterValidator(_regex)]

Key = tuple[str | int, ...]
Lines = Mapping[Key, int]
"""1-based line of every key and list item, by its path from the top; `()` is the top itself."""


MOST_DIGITS = 400
"""Of a whole number: Python refuses to print those of some thousands, though it reads them when they are in hex."""


YAML = frozenset({".yaml", ".yml"})
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

_PYTHONS_WORDS = re.compile(r"^[A-Z]\w+ (?=should )| after validation")
"""Of a message such as "Tuple should have at least 1 item after validation": whoever writes YAML has other words."""

MOST_CHARACTERS = 1 << 20
"""Of a file; some, such as /dev/zero, never end."""

MOST_LEVELS = 100
"""Of brackets within brackets."""


class _Loader(yaml.SafeLoader):
    """SafeLoader without aliases; with YAML 1.2 floats."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not taken; write the value out", mark)
        return super().compose_node(parent, index)

    def fetch_flow_collection_start(self, kind: Any) -> None:
        if self.flow_level >= MOST_LEVELS:  # the scanner looks at every level for each token
            raise yaml.scanner.ScannerError(None, None, "it is nested too deeply", self.get_mark())
        super().fetch_flow_collection_start(kind)


# PyYAML follows YAML 1.1, where 1e6 and 2.5e-4 without a sign or a dot are strings.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load_model(model: type[T], path: Path) -> T:
    """Read and check a YAML file; unknown keys are an error with a suggestion where the model forbids them.

    Raises:
        ConfigError: The file is absent, is not valid YAML, or does not fit the model.
        PermissionMissing: The file may not be read.
    """
    data, lines = load_yaml(path)
    return validate(model, data, path, lines)


def configs_folder(name: str) -> Path:
    """A folder of the files that ship with rlctl."""
    # From the package, not from `rlctl.configs`: a folder without __init__ has no single place to look in.
    return Path(str(files("rlctl") / "configs" / name))


def shipped_or_own(source: str | Path, folder: str, what: str) -> Path:
    """A file that ships in a folder of configs, by its name, or one of the user's by its path.

    Raises:
        ConfigError: None that ships has this name, and it is not a YAML file.
    """
    shipped = {file.stem: file for file in configs_folder(folder).glob("*.yaml")}
    path = shipped.get(str(source), Path(source))
    if path.suffix not in YAML:
        raise ConfigError(f"no {what} {str(source)!r}, nor is it a .yaml file{meant(str(source), sorted(shipped))}")
    return path


def beside(folder: Path, name: object) -> Any:
    """The path of a file with a suffix that stands in this folder; anything else as it is."""
    path = folder / name if isinstance(name, str) else folder
    # Path.is_file raises for a name that is too long to be one.
    return str(path) if path.suffix and os.path.isfile(path) else name


def load_yaml(path: Path) -> tuple[dict[str, Any], Lines]:
    """Read a YAML file whose top is a mapping, with the line of every key.

    Raises:
        ConfigError: The file is absent or is not such YAML.
        PermissionMissing: The file may not be read.
    """
    try:
        with reading(path), path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text: save it as such, or name the right file", path) from error
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"is longer than {MOST_CHARACTERS} characters: is it the right file?", path)
    return parse_yaml(text, path)


def parse_yaml(text: str, name: Path | str) -> tuple[dict[str, Any], Lines]:
    """Parse YAML text whose top is a mapping; an empty text is an empty mapping.

    Raises:
        ConfigError: A syntax error, a duplicate key, an alias, several documents, or another top than a mapping.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, {(): 1}
        lines = dict(_walk(node, (), name))
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(f"is not valid YAML: {error.problem}", name, mark.line + 1 if mark else None) from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        # Unprintable characters; an impossible date; `!!int ''` and other tags on which PyYAML stumbles.
        raise ConfigError(f"is not valid YAML: {error}", name) from error
    except RecursionError as error:
        raise ConfigError("is nested too deeply", name) from error
    if not isinstance(data, dict):
        raise ConfigError(f"needs `key: value` lines at its top, not a {type(data).__name__}", name, lines[()])
    return data, lines


def _walk(node: yaml.Node, where: Key, name: Path | str) -> Iterator[tuple[Key, int]]:
    yield where, node.start_mark.line + 1
    _check(node, name)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*where, index), name)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            _check(key, name)
            line, text = key.start_mark.line + 1, str(key.value)
            if text in seen:
                raise ConfigError(f"key '{text}' stands on line {seen[text]} already; keep one", name, line)
            seen[text] = line
            yield from _walk(value, (*where, text), name)
            yield (*where, text), line


def _check(node: yaml.Node, name: Path | str) -> None:
    """Refuse scalars that cannot be printed, opened or written out again."""
    if not isinstance(node, yaml.ScalarNode):
        return
    line = node.start_mark.line + 1
    if node.tag == "tag:yaml.org,2002:int" and len(node.value) > MOST_DIGITS:
        raise ConfigError(f"a number of {len(node.value)} digits is too long", name, line)
    if node.tag == "tag:yaml.org,2002:binary" or _NO_TEXT.search(node.value):
        raise ConfigError("bytes, NUL and halves of surrogate pairs are not text; write it out", name, line)


def validate(model: type[T], data: object, name: Path | str, lines: Lines | None = None) -> T:
    """Check data against a model.

    Args:
        lines: Line of every key, from `load_yaml`.

    Raises:
        ConfigError: The first thing that does not fit, in one line; with the number of others.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # Unknown keys first: a misspelt key is also a missing one, and only the former line helps.
        problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
        first = problems[0]
        known = _key_in_file(first["loc"], lines or {})
        others = "" if len(problems) == 1 else f" ({len(problems) - 1} more after this one)"
        raise ConfigError(_describe(model, first, known) + others, name, (lines or {}).get(known)) from error


def _key_in_file(loc: Key, lines: Lines) -> Key:
    """The part of a pydantic location that stands in the file: union tags and absent keys do not."""
    known: Key = ()
    for part in loc:
        if (*known, part) in lines:
            known = (*known, part)
    return known


def _describe(model: type[BaseModel], problem: ErrorDetails, known: Key) -> str:
    loc = problem["loc"]
    key = ".".join(map(str, known or loc))
    if problem["type"] == "missing":
        key = ".".join(map(str, (*known, loc[-1])))
        return f"key '{key}' is missing"
    if problem["type"] == "extra_forbidden":
        return _removal(model, key) or f"unknown key '{key}'" + _suggestion(model, loc)
    if problem["type"] in ("value_error", "assertion_error"):
        return (f"{key}: " if key else "") + str(problem["ctx"]["error"])
    if problem["type"] == "union_tag_invalid":
        discriminator = str(problem["ctx"]["discriminator"]).strip("'")
        return _removal(model, f"{key}.{discriminator}: {problem['ctx']['tag']}") or _wrong_tag(key, problem["ctx"])
    if problem["type"] in ("model_type", "model_attributes_type"):
        return f"{key or 'the file'} is {reprlib.repr(problem['input'])}: {_as_section(model, loc, problem['input'])}"
    message = _PYTHONS_WORDS.sub("", problem["msg"]).replace("valid tuple", "list")
    return f"{key or 'the file'} is {reprlib.repr(problem['input'])}: {message}" + _hint(loc, problem["input"])


def _removal(model: type[BaseModel], key: str) -> str:
    """What to use in place of a key, or of one of its values, that was removed; empty if it never was there."""
    removed: Mapping[str, str] = getattr(model, "REMOVED", {})
    path = re.sub(r"\.\d+(?=\.|$)", "", key)
    return f"'{key}' was removed: {removed[path]}" if path in removed else ""


def _as_section(model: type[BaseModel], loc: Key, value: object) -> str:
    """How to write a section for which there is only a value: it most often means the first key."""
    sections = _models_at(model, loc)
    if loc and len(sections) == 1 and isinstance(value, (str, int, float)):
        first = next(iter(_keys(sections[0])))
        if _takes(sections[0], first, value):
            text = value if isinstance(value, str) else json.dumps(value)
            return f"write {loc[-1]}: {{{first}: {text}}}"
    shared = [name for name in _keys(sections[0]) if all(name in _keys(section) for section in sections)]
    return "needs keys below it" + (f", such as {', '.join(shared)}" if shared else "")


def _takes(section: type[BaseModel], key: str, value: object) -> bool:
    try:
        section.model_validate({key: value})
    except ValidationError as error:
        return all(problem["loc"][:1] != (key,) for problem in error.errors())
    return True


def _wrong_tag(key: str, ctx: Mapping[str, Any]) -> str:
    """A discriminator that names no member of its union."""
    tags = str(ctx["expected_tags"]).replace("'", "").split(", ")
    discriminator = str(ctx["discriminator"]).strip("'")
    return f"unknown {discriminator} {ctx['tag']!r} in {key or 'the file'}" + meant(str(ctx["tag"]), tags, "known are")


def _hint(loc: Key, value: object) -> str:
    if not loc or not isinstance(value, (int, float)):
        return ""
    if "_ratio" in str(loc[-1]) and 1.0 < value <= 100.0:
        return f" (a percentage? write {value / 100:g})"
    if str(loc[-1]) == "quantile_percent" and 0.5 <= value < 1.0:
        return f" (a ratio? write {value * 100:g})"
    return ""


def _suggestion(model: type[BaseModel], loc: Key) -> str:
    names = sorted({name for candidate in _models_at(model, loc[:-1]) for name in _keys(candidate)})
    return meant(str(loc[-1]), names, "known are", "; no keys belong here")


def _models_at(model: type[BaseModel], loc: Key) -> list[type[BaseModel]]:
    """The models whose keys may stand at a location; indices, dict keys and union tags are stepped over."""
    candidates = [model]
    for part in loc:
        fields = [field for c in candidates for field in [_keys(c).get(str(part))] if field is not None]
        tagged = [c for c in candidates if any(part in get_args(kind) for kind in _keys(c).values())]
        candidates = [nested for field in fields for nested in _models_in(field)] or tagged or candidates
    return candidates


def _keys(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
