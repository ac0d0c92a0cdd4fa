"""Hooks of mkdocs for the documentation site.

The pages are written for GitHub, too, where the whole repository is at hand. A link
that leads out of docs/ becomes plain text on the site, since its target is not there.
`tests/style/test_doc_links.py` checks that the target is in the repository.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s:#]+)(?:#[^)\s]*)?\)")
CELL = re.compile(r"<td.*?</td>", re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Returns the text of a page as it stands on the site."""
    return without_outside_links(markdown, page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Returns the HTML of a page. In a table, GitHub needs a backslash before a bar in code, and mkdocs shows it."""
    return CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Puts the Markdown of each page beside its HTML: `llms.txt` links to it."""
    source, site = Path(config.docs_dir), Path(config.site_dir)
    for page in source.rglob("*.md"):
        shutil.copyfile(page, site / page.relative_to(source))


def without_outside_links(markdown: str, name: str) -> str:
    """Returns the text of the page docs/`name`, in which links out of docs/ are plain text."""
    folder = posixpath.dirname(name)

    def keep(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link["target"]))
        return link["text"] if target.startswith("../") else link[0]

    return LINK.sub(keep, markdown)
