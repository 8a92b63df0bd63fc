"""A file written whole or not at all: whoever reads it, after a crash too, has the old one or the new one."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a text file by way of a `.part` beside it, which takes its place; its folder is made if need be.

    Args:
        path: The file.
        text: All of it.

    Raises:
        OSError: It cannot be written; what was there before still is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
