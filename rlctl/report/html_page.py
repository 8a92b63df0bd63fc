"""The report's page: a template that fits on a screen, and the style it carries inside itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

__all__ = ["page", "section", "table"]

STYLE = """
:root { color-scheme: light dark; --ink: #1c1f24; --paper: #ffffff; --panel: #f5f6f8; --line: #d5d9df;
  --faint: #9aa1ab; --note: #59606a; --lc: #2a78c8; --be: #c85a11; --target: #c23b4e; --frozen: #7a64cf33; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #15171b; --panel: #1e2126; --line: #383d45;
  --faint: #6d747e; --note: #a5acb6; --lc: #5aa2ea; --be: #ee8a48; --target: #f06a7c; --frozen: #9a88e64d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { margin: 3rem 0 .25rem; border-top: 1px solid var(--line);
  padding-top: 1rem; } h3 { margin: 1.75rem 0 .5rem; font-size: 1.05rem; }
a { color: var(--lc); } p { max-width: 60rem; } .note { color: var(--note); font-size: .875rem; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; }
.box { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
.box:focus-visible { outline: 2px solid var(--lc); }
.figure { padding: .5rem; } .figure svg { display: block; width: 100%; min-width: 42rem; height: auto; margin: 0 auto; }
.figure.single svg { max-width: 60rem; }
table { border-collapse: separate; border-spacing: 0; font-size: .8125rem;
  font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
thead th { background: var(--panel); vertical-align: bottom; white-space: normal; line-height: 1.25; }
tbody tr:last-child > * { border-bottom: 0; }
th:first-child { position: sticky; left: 0; text-align: left; background: var(--panel); }
.runs { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1rem; }
.runs figure { margin: 0; } .runs figcaption { font-weight: 600; font-size: .9rem; }
summary { cursor: pointer; margin: 1.75rem 0 .5rem; font-weight: 600; }
.timeline { display: block; width: 100%; height: auto; font: 9.5px system-ui, sans-serif; fill: var(--ink); }
.timeline path { fill: none; stroke-width: 1; stroke-linejoin: round; } .timeline .tick { text-anchor: end; }
.timeline .grid { stroke: var(--line); stroke-width: .6; } .timeline .frozen { fill: var(--frozen); }
.timeline .load, .timeline .tail { stroke: var(--lc); fill: var(--lc); } .timeline .be { stroke: var(--be);
  fill: var(--be); } .timeline .load, .timeline .tail, .timeline .be { stroke-width: .8; fill-opacity: .45; }
.timeline .target { stroke: var(--target); stroke-dasharray: 4 3; }
code { overflow-wrap: anywhere; background: var(--panel); padding: .1rem .3rem; border-radius: 3px; }
"""

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


def page(title: str, body: str) -> str:
    """A page that needs nothing but itself.

    Args:
        title: Plain text.
        body: HTML, escaped where it has to be.
    """
    return PAGE.substitute(title=escape(title), style=STYLE, body=body)


def section(name: str, parts: Sequence[str]) -> str:
    """A scenario's part of the page, with its heading to link to."""
    inner = "\n".join(parts)
    return f'<section id="{escape(name)}">\n<h2>{escape(name)}</h2>\n{inner}\n</section>'


def table(rows: Sequence[Sequence[str]], label: str) -> str:
    """A table that scrolls inside its box; the first row is the header, the first column names the row.

    Args:
        rows: Plain text.
        label: What a screen reader calls the box.
    """
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows[1:]
    )
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )
