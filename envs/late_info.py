"""The `info` of a step, made when somebody first looks at it: most learners never do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LateInfo(dict[str, Any]):
    """A dict of what `make` gives, which is called at the first look; what was set before stays as it was set."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._make: Callable[[], dict[str, Any]] | None = make

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def __deepcopy__(self, memory: dict[int, Any]) -> dict[str, Any]:
        return dict(self)  # nobody changes what is in it


def _look(name: str) -> Callable[..., Any]:
    read = getattr(dict, name)

    def look(info: LateInfo, *given: Any, **named: Any) -> Any:
        make, info._make = info._make, None
        if make is not None:
            given_before = dict.copy(info)
            dict.update(info, make())
            dict.update(info, given_before)
        return read(info, *given, **named)

    return look


for _name in (
    "__contains__", "__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__len__", "__ne__", "__or__",
    "__repr__", "__reversed__", "__ror__", "copy", "get", "items", "keys", "pop", "popitem", "setdefault", "values",
):  # fmt: skip
    setattr(LateInfo, _name, _look(_name))
