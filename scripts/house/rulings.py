"""Where the product observes, asks a policy and rules: the sentence of a tick, which should stand once."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from scripts.house.sources import Source

__all__ = ["policy_leaks", "rule_calls", "sentences"]

RULING = frozenset({"rule", "judge"})
"""What a shield is called with."""

ASKING = frozenset({"observe", "act", "decode", "propose", "proposed", "logits", "_logits"})
"""What an observer, a policy and a decoder of its actions are called with."""

CLASS_ARGUMENT = {"isinstance": 1, "cast": 0}
"""Functions that a class is named to, with its place among the arguments."""


def sentences(product: Sequence[Source]) -> list[str]:
    """Classes, and functions outside classes, that call both a shield and an observer, policy or decoder."""
    return [
        f"{source.at(node)} {node.name}"
        for source in product
        for node in source.tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        if (calls := set(_calls(node))) & RULING and calls & ASKING
    ]


def rule_calls(product: Sequence[Source]) -> list[str]:
    """Calls of a method `rule`."""
    return [
        source.at(node)
        for source in product
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "rule"
    ]


def policy_leaks(product: Sequence[Source]) -> list[str]:
    """Modules that ask a policy for its class, `path:line class`, each module once.

    The classes are those of agents/ that have or inherit a method `act`. `isinstance`, `cast` and class patterns count,
    outside the module that defines the class.
    """
    homes = _policy_classes([source for source in product if source.path.parts[0] == "agents"])
    leaks = []
    for source in product:
        tests = (
            f"{source.path}:{line} {name}"
            for node in ast.walk(source.tree)
            for name, line in _class_tests(node)
            if name in homes and homes[name] is not source
        )
        leaks += list(tests)[:1]
    return leaks


def _policy_classes(agents: Sequence[Source]) -> dict[str, Source]:
    """Modules that define a policy's class, by its name."""
    classes = {
        node.name: (node, source)
        for source in agents
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    }
    policies: set[str] = {name for name, (node, _) in classes.items() if "act" in _methods(node)}
    while further := {name for name, (node, _) in classes.items() if _bases(node) & policies} - policies:
        policies |= further
    return {name: classes[name][1] for name in policies if "Protocol" not in _bases(classes[name][0])}


def _methods(node: ast.ClassDef) -> set[str]:
    return {part.name for part in node.body if isinstance(part, ast.FunctionDef)}


def _bases(node: ast.ClassDef) -> set[str]:
    return {base.attr if isinstance(base, ast.Attribute) else ast.unparse(base).split("[")[0] for base in node.bases}


def _calls(node: ast.AST) -> Iterator[str]:
    """Names of the functions and methods that are called below a node."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            if isinstance(part.func, ast.Attribute):
                yield part.func.attr
            elif isinstance(part.func, ast.Name):
                yield part.func.id


def _class_tests(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The classes that a node tests for, each with its line."""
    if isinstance(node, ast.MatchClass):
        yield from _names(node.cls)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASS_ARGUMENT:
        yield from _names(node.args[CLASS_ARGUMENT[node.func.id]])


def _names(expression: ast.expr) -> Iterator[tuple[str, int]]:
    for part in ast.walk(expression):
        if isinstance(part, ast.Name | ast.Attribute):
            yield part.id if isinstance(part, ast.Name) else part.attr, part.lineno
