"""Sphinx' settings; `scripts/docs` builds with every warning as an error, and without network."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from rlctl_docs.site import setup, slug  # noqa: E402, F401 - Sphinx calls the former

from rlctl import __version__  # noqa: E402

project = "rlctl"
release = version = __version__
html_title = f"rlctl {__version__}"
language = "en"

extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_heading_slug_func = "rlctl_docs.site.slug"
exclude_patterns = ["README.md", "rlctl_docs", "results/*.json"]
nitpicky = True

html_theme = "furo"
html_theme_options = {"sidebar_hide_name": False, "top_of_page_buttons": []}
html_static_path = ["static"]
html_css_files = ["rlctl.css"]
html_copy_source = html_show_sourcelink = False
html_show_sphinx = html_show_copyright = False
pygments_style, pygments_dark_style = "friendly", "monokai"
