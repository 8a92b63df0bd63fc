"""What an option of a manager may be, as its annotation in a dataclass of options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from rlctl.agents.policy import Policy
from rlctl.envs.errors import PolicyError

MOST_TIME_SCALE = 1000.0
"""A published minute in 60 ms; beyond it a fast loop would fire thousands of times in a tick."""

TimeScale = Annotated[float, Field(gt=0.0, le=MOST_TIME_SCALE)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveShare = Annotated[float, Field(gt=0.0, le=1.0)]
Count = Annotated[int, Field(gt=0)]
Index = Annotated[int, Field(ge=0)]


def check(manager: Policy) -> None:
    """Raise PolicyError for the first option of a manager, a dataclass of them, that its annotation excludes."""
    for option, rule in _rules(type(manager)).items():
        value = getattr(manager, option)
        try:
            rule.validate_python(value, strict=True)
        except ValidationError as error:
            said = error.errors()[0]["msg"]
            raise PolicyError(f"{manager.name}: {option} is {value!r}: {said[:1].lower()}{said[1:]}") from error


@cache
def _rules(manager: type[Policy]) -> Mapping[str, TypeAdapter[Any]]:
    """What checks each option of a dataclass whose annotation says more than a type."""
    try:
        hints = get_type_hints(manager, include_extras=True)
    except NameError:  # a user's own class, with names that only a type checker imports
        return {}
    options = fields(manager)  # type: ignore[arg-type]  # what has a `__post_init__` that is called is a dataclass
    return {option.name: TypeAdapter(hint) for option in options if _says_more(hint := hints[option.name])}


def _says_more(hint: object) -> bool:
    return get_origin(hint) in (Annotated, Literal) or any(map(_says_more, get_args(hint)))
