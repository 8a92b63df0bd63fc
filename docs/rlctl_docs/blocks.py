"""The fenced blocks of a page, and what each asks for; docs/README.md has the conventions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

OPTIONS = {"requires", "check", "exit", "file"}
_OPTION = re.compile(r'([a-z]+)="([^"]*)"')
_INFO = re.compile(r"(?P<language>[\w+-]+)(?:\s+\{(?P<options>[^}]*)\})?")


class BlockError(Exception):
    """A block that does not do what it says: one line, and what it printed."""


class Use(StrEnum):
    """What becomes of a block."""

    RUN = "run"
    FILE = "written"
    VALIDATED = "validated"
    SKIPPED = "skipped"
    SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        page: Its page.
        line: Of the opening fence.
        language: The first word behind it.
        options: What stands in braces.
        text: What it holds.
    """

    page: Path
    line: int
    language: str
    options: Mapping[str, str]
    text: str

    @property
    def file(self) -> str:
        """The page from the checkout's top."""
        return str(self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page)

    @property
    def place(self) -> str:
        """FILE:LINE, for messages."""
        return f"{self.file}:{self.line}"

    @property
    def lacks(self) -> tuple[str, ...]:
        """The requirements that it names."""
        return tuple(self.options.get("requires", "").split())

    def use(self, available: frozenset[str] = frozenset()) -> Use:
        """What becomes of it where these requirements are met."""
        if set(self.lacks) - available:
            return Use.SKIPPED
        if "file" in self.options:
            return Use.FILE
        if self.language in ("bash", "python"):
            return Use.RUN
        return Use.VALIDATED if self.language in ("yaml", "json") else Use.SHOWN


def pages() -> tuple[Path, ...]:
    """Every page whose blocks are tested; what is generated has none that are run."""
    own = sorted(page for page in DOCS.rglob("*.md") if not page.is_relative_to(DOCS / "reference"))
    return (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *own)


def requirements() -> dict[str, str]:
    """What a block may need beyond what CI has, with a sentence each."""
    known: dict[str, str] = yaml.safe_load((DOCS / "requirements.yaml").read_text())
    return known


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page in order.

    Raises:
        BlockError: A fence says something that the conventions do not know, or nothing.
    """
    known = requirements()
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block") and not token.info.startswith("{"):  # those are MyST's directives
            assert token.map
            block = _read(page, token.map[0] + 1, token.info, token.content)
            _check(block, known)
            yield block


def _read(page: Path, line: int, info: str, text: str) -> Block:
    found = _INFO.fullmatch(info.strip())
    if found is None:
        raise BlockError(
            f"{Block(page, line, '', {}, '').place}: a block says its language, as in ```text; not {info!r}"
        )
    options = found["options"] or ""
    if left := _OPTION.sub("", options).strip():
        raise BlockError(f'{Block(page, line, "", {}, "").place}: {left!r} is no option="value"')
    return Block(page, line, found["language"], options_in(options), text)


def options_in(braces: str) -> dict[str, str]:
    """The options of a fence: what stands in its braces, by name."""
    return dict(_OPTION.findall(braces))


def _check(block: Block, known: Mapping[str, str]) -> None:
    if unknown := set(block.options) - OPTIONS:
        raise BlockError(
            f"{block.place}: no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(OPTIONS))}"
        )
    if unknown := set(block.lacks) - set(known):
        raise BlockError(f"{block.place}: docs/requirements.yaml has no {', '.join(sorted(unknown))}")
    if block.language == "yaml" and "check" not in block.options and not block.lacks:
        raise BlockError(f'{block.place}: a yaml block names its schema, as in ```yaml {{check="serve"}}')
