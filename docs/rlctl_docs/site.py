"""The site: what Sphinx does beyond its settings, and how it is called."""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from rlctl_docs.blocks import DOCS, ROOT, options_in

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SITE = ROOT / "site"

ROOT_PAGES = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md", "security": "SECURITY.md"}
"""Files of the checkout's top that are pages too."""

_FENCE = re.compile(r"^(?P<mark>`{3,})(?P<language>[\w+-]+) \{(?P<options>[^}\n]*)\}$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#|docs/)(?P<target>[^)\s]+)\)")


def slug(heading: str) -> str:
    """The anchor of a heading: its words in lower case without apostrophes, joined by `-`; as GitHub has them."""
    return re.sub(r"[^a-z0-9_]+", "-", re.sub("['’]", "", heading.lower())).strip("-")


def setup(app: Sphinx) -> None:
    """Have the generated pages made first, and each page rewritten as it is read."""
    app.connect("builder-inited", _make_pages)
    app.connect("source-read", _read)


def _make_pages(app: Sphinx) -> None:  # noqa: ARG001 - Sphinx gives it
    from rlctl_docs.reference import write

    write(DOCS / "reference")
    for name, file in ROOT_PAGES.items():
        page = DOCS / "reference" / f"{name}.md"
        text = _LINK.sub(_named, (ROOT / file).read_text()).replace("](docs/", "](../")
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def _named(link: re.Match[str]) -> str:
    """A link to a file of the checkout's top, from `reference/`: a page if it is one, else none."""
    page = next((name for name, file in ROOT_PAGES.items() if file == link["target"]), "")
    return f"]({page}.md)" if page else link[0]


def _read(app: Sphinx, page: str, text: list[str]) -> None:  # noqa: ARG001 - Sphinx gives them
    text[0] = _FENCE.sub(_captioned, text[0])


def _captioned(fence: re.Match[str]) -> str:
    """A fence as MyST's directive, with its file or its requirements over it."""
    options = options_in(fence["options"])
    lacks = ", ".join(options.get("requires", "").split())
    said = ", ".join(filter(None, (options.get("file", ""), lacks and f"needs {lacks}")))
    language = fence["language"]
    return f"{fence['mark']}{{code-block}} {language}\n:caption: {said}\n" if said else f"{fence['mark']}{language}"


def build() -> int:
    """Make the site.

    Returns:
        The exit code; a warning is an error.
    """
    quiet = ["-q", "-W", "--keep-going", "-n", "-b", "html", "-d", str(ROOT / "build" / "docs")]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    code = subprocess.run([sys.executable, "-m", "sphinx", *quiet, str(DOCS), str(SITE)], env=environment).returncode
    if code == 0:
        print(f"{SITE / 'index.html'}: {len(list(SITE.rglob('*.html')))} pages")
    return code


def serve(port: int) -> int:
    """Make the site and serve it on loopback until Ctrl-C."""
    if code := build():
        return code
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 130
    return 0
