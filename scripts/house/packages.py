"""What imports what: circles between packages and modules, and modules that no command reaches."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grimp

from scripts.house.sources import Source

__all__ = ["UNREACHED_BY_DESIGN", "circles", "import_graph", "unreached"]

ENTRANCES = re.compile(r"rlctl\.(cli|__main__|commands(\..+)?)$")

UNREACHED_BY_DESIGN: Mapping[str, str] = {
    "rlctl.envs.host.apps.rlctl_mode": "runs in an application's process, which imports it by itself",
}
"""Modules that need no command, each with its reason."""

MODULE = re.compile(r"rlctl(\.\w+)+")


def import_graph(checkout: Path) -> grimp.ImportGraph:
    """All imports of a checkout's product, those below `if TYPE_CHECKING` and within functions among them."""
    sys.path.insert(0, str(checkout))
    importlib.invalidate_caches()
    try:
        return grimp.build_graph("rlctl", cache_dir=None)
    finally:
        sys.path.remove(str(checkout))


def circles(graph: grimp.ImportGraph) -> list[str]:
    """Siblings, at any depth, that import one another: each pair once, and each longer way round that has no pair."""
    ways = []
    for parent in sorted(module for module in graph.modules if graph.find_children(module)):
        imports = _sibling_imports(graph, parent)
        for circle in _circles(imports):
            pairs: list[Sequence[str]] = [pair for pair in itertools.combinations(circle, 2) if _mutual(imports, *pair)]
            ways += [f"{parent}: {' <-> '.join(map(_last, names))}" for names in pairs or [circle]]
    return ways


def unreached(graph: grimp.ImportGraph, product: Sequence[Source]) -> dict[str, int]:
    """Lines of the modules that no command imports, nor names as the module that a process or Gymnasium is to load."""
    by_module = {module_name(source.path): source for source in product}
    waiting = [name for name in by_module if ENTRANCES.match(name)]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in reached or name not in by_module:
            continue
        reached.add(name)
        waiting += graph.find_modules_directly_imported_by(name)
        waiting += _named_modules(by_module[name])
        waiting.append(name.rpartition(".")[0])
    left = by_module.keys() - reached - UNREACHED_BY_DESIGN.keys()
    return {name: by_module[name].line_count for name in sorted(left)}


def module_name(path: Path) -> str:
    """The name by which a file of the product is imported."""
    parts = path.with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "rlctl" else ("rlctl", *parts))


def _named_modules(source: Source) -> Iterator[str]:
    """Modules that a text in the code names: `python -m NAME`, and Gymnasium's `NAME:CLASS`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if MODULE.fullmatch(name):
                yield name


def _sibling_imports(graph: grimp.ImportGraph, parent: str) -> Mapping[str, set[str]]:
    """For each child of a package those of its other children that it, or anything below it, imports."""
    owner = {
        module: child for child in graph.find_children(parent) for module in (child, *graph.find_descendants(child))
    }
    imports: dict[str, set[str]] = defaultdict(set)
    for module, child in owner.items():
        targets = {owner.get(target) for target in graph.find_modules_directly_imported_by(module)}
        imports[child] |= {target for target in targets if target is not None} - {child}
    return imports


def _mutual(imports: Mapping[str, set[str]], name: str, other: str) -> bool:
    return other in imports[name] and name in imports[other]


def _circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of names of which each reaches every other."""
    reach = {name: _reach(name, imports) for name in imports}
    groups = {
        frozenset(other for other in reach[name] if name in reach.get(other, ()))
        for name in imports
        if name in reach[name]
    }
    return sorted(sorted(group) for group in groups)


def _reach(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(imports.get(start, ()))
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += imports.get(name, ())
    return reached


def _last(module: str) -> str:
    return module.rpartition(".")[2]
