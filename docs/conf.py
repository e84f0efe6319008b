"""How Sphinx makes the site of these pages: `make docs`. The pages are read on GitHub as well, so links between them
are relative, and what lies outside this folder is a page or a download of the site.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import batchchol  # noqa: E402
from batchchol.report.claims.listed import load  # noqa: E402
from batchchol.report.claims.pages import linked, rendered  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "batchchol"
author = "batchchol developers"
release = version = batchchol.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
include_patterns = ["*.md", "generated/*"]

myst_heading_anchors = 4
autosummary_generate = True
# Not all disks tell cholesky.html from Cholesky.html.
autosummary_filename_map = {
    f"batchchol.{name}": f"batchchol.{name}-tuple"
    for name in batchchol.__all__
    if name != name.lower() and name.lower() in batchchol.__all__
}
autodoc_typehints = "none"  # numpydoc's sections have the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
templates_path = ["theme"]

html_theme = "furo"
html_title = f"batchchol {release}"
html_static_path = ["theme"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # a page from disk may not read others
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}

LISTED = load(ROOT)
_FOLDERS = ("history", "report_h200")
# Where the site has what a link of a page leads to outside this folder.
_ELSEWHERE = {"](../datasets/README.md": "](data.md", "](../README.md#": "](results.md#"}


def _link_within_the_site(_: Sphinx, page: str, source: list[str]) -> None:
    for there, here in _ELSEWHERE.items():
        source[0] = source[0].replace(there, here)


def _show_claims(_: Sphinx, page: str, source: list[str]) -> None:
    """Numbers lead to the list of all of them, which only the site has: there are thousands."""
    source[0] = rendered(source[0], LISTED) if page == "claims" else rendered(source[0], LISTED, linked)


def _copy_pages_of_their_own(app: Sphinx, error: Exception | None) -> None:
    """Folders of pages that batchchol wrote; pages here link to them by HTML, of which Sphinx makes no download."""
    for name in _FOLDERS if not error else ():
        shutil.copytree(ROOT / "docs" / name, Path(app.outdir) / name, dirs_exist_ok=True)


def _keep_bars(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """In docstrings |L| is the absolute value; to Sphinx it would be a substitution."""
    lines[:] = [line.replace("|", "\\|") for line in lines]


def _skip_fields(_app: Sphinx, _what: str, _name: str, member: object, skip: bool, _options: object) -> bool:
    """The fields of a named tuple, of which Python says no more than their number: the class says what they are."""
    return skip or (getattr(member, "__doc__", None) or "").startswith("Alias for field number")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _show_claims)
    app.connect("source-read", _link_within_the_site)
    app.connect("build-finished", _copy_pages_of_their_own)
    app.connect("autodoc-process-docstring", _keep_bars)
    app.connect("autodoc-skip-member", _skip_fields)
