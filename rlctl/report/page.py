"""The writers of every report: Markdown tables, and HTML pages that need nothing but themselves, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template


def html_page(title: str, body: str) -> str:
    """A whole page; the title is escaped here, the body is HTML already."""
    template = Template((files("rlctl.report") / "page.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(title), body=body)


def html_table(rows: Sequence[Sequence[str]], label: str) -> str:
    """A table that scrolls inside its box; the first row is the header; screen readers call the box by the label."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows[1:]
    )
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def render(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; the first row is the header, the first column is text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])} |" for row in rows]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])
