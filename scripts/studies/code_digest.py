"""Which code makes a result: a digest of what its modules say to the interpreter, so that no comment changes it."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

DECIDING = ("envs", "envs/sim", "safety", "agents", "agents/managers", "agents/served")
SIMULATED = tuple(f"{folder}/*.py" for folder in (*DECIDING, "agents/bounds", "rlctl/bench"))
LIVE = (
    *SIMULATED, "envs/host/**/*.py", "envs/testbed/**/*.py", "envs/testbed/*.c", "rlctl/loop/**/*.py",
    "rlctl/config/sections.py", "agents/training/fit_prm.py", "configs/scenarios/live-*.yaml",
)  # fmt: skip
CONFIGURED = ("configs/bundles/*/weights.npz", "configs/managers/*.yaml", "configs/safety/*.yaml")
"""Networks and constants that decide with it. A simulated result has digests of its scenario and profile."""


def code_digest(root: Path, *, live: bool) -> str:
    """Of the modules that decide a simulated result, or a live one, and of the networks and constants that ship."""
    found = hashlib.sha256()
    for pattern in (*(LIVE if live else SIMULATED), *CONFIGURED):
        for path in sorted(root.glob(pattern)):
            found.update(str(path.relative_to(root)).encode() + b"\0")
            found.update(_meaning(path) if path.suffix == ".py" else path.read_bytes())
    return found.hexdigest()[:12]


def _meaning(path: Path) -> bytes:
    """A module without comments, docstrings and places."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree).encode()


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
