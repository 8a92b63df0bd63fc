"""The writers of every report: one list of parts as Markdown, as LaTeX, or as an HTML page that needs nothing else."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template


@dataclass(frozen=True, slots=True)
class Heading:
    """A title within the page; level 2 can be linked to by its text."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader of the part before must know, in small print."""

    text: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of which the first is the header; screen readers call it by the label."""

    rows: Sequence[Sequence[str]]
    label: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure: SVG in HTML, a link to the file in Markdown, which leaves out one without a file."""

    label: str
    svg: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class Fold:
    """Pictures under a line that unfolds them, in HTML alone."""

    summary: str
    note: str
    pictures: Sequence[Picture]
    is_open: bool


Part = str | Heading | Note | Grid | Picture | Fold
"""A text is a paragraph, and keeps its lines."""


def html_page(title: str, parts: Sequence[Part]) -> str:
    """A whole page, light or dark, with a table of contents where it has several headings."""
    names = [part.text for part in parts if isinstance(part, Heading) and part.level == 2]
    links = " ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
    contents = f'<nav aria-label="Contents">{links}</nav>\n' if len(names) > 1 else ""
    template = Template((files("rlctl.report") / "page.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(title), body=contents + "\n".join(map(_html, parts)))


def _html(part: Part) -> str:
    match part:
        case Heading(text, level):
            anchor = f' id="{escape(text)}"' if level == 2 else ""
            return f"<h{level}{anchor}>{escape(text)}</h{level}>"
        case Note(text):
            return f'<p class="note">{escape(text)}</p>'
        case Grid(rows, label):
            return _html_table(rows, label)
        case Picture():
            return f'<div class="box figure" tabindex="0">{part.svg}</div>'
        case Fold():
            figures = "\n".join(
                f"<figure><figcaption>{escape(one.label)}</figcaption>{one.svg}</figure>" for one in part.pictures
            )
            note = f'<p class="note">{escape(part.note)}</p>\n<div class="runs">{figures}</div>'
            state = " open" if part.is_open else ""
            return f"<details{state}><summary>{escape(part.summary)}</summary>\n{note}</details>"
        case _:
            return f"<p>{escape(part)}</p>".replace("\n", "<br>\n")


def _html_table(rows: Sequence[Sequence[str]], label: str) -> str:
    """A table that scrolls inside its box."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows[1:]
    )
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def markdown(parts: Sequence[Part]) -> str:
    """The same for a README or a terminal."""
    return "\n\n".join(text for part in parts for text in _markdown(part))


def _markdown(part: Part) -> Iterator[str]:
    match part:
        case Heading(text, level):
            yield f"{'#' * level} {text}"
        case Grid(rows, _):
            yield render(rows)
        case Picture(label, _, file):
            if file:
                yield f"![{label}]({file})"
        case Note(text):
            yield text
        case str():
            yield part


_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    | {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {sign: f"${sign}$" for sign in "<>"}
)


def latex(parts: Sequence[Part]) -> str:
    """The grids alone, for a paper: tabulars of the package booktabs, each under its label as a comment."""
    return "\n\n".join(f"% {part.label}\n{_latex_table(part.rows)}" for part in parts if isinstance(part, Grid)) + "\n"


def _latex_table(rows: Sequence[Sequence[str]]) -> str:
    head, *lines = (" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in rows)
    columns = "l" + "r" * (len(rows[0]) - 1)
    top, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join([top, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", end])


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows, the header first, as a spreadsheet or pandas reads them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def render(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; the first row is the header, the first column is text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])} |" for row in rows]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])
