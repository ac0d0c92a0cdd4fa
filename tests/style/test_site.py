"""The documentation site: mkdocs builds it without a warning, with all pages, and it loads nothing from elsewhere.

The tests that build it need mkdocs, which has an environment of its own: `make docs` makes it, and DOCS_PYTHON names
another one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.style.tree import ROOT, files
from tools.reference_site import nav
from tools.site_hooks import on_page_content, without_outside_links

BUILD_TIMEOUT_S = 120.0
PARTS = ["Home", "Tutorial", "How-to guides", "Reference", "Explanation"]


class Loaded(HTMLParser):
    """What a browser loads for a page, beside the page itself."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag == "link" and not {"canonical", "next", "prev", "alternate"} & set(named.get("rel", "").split()):
            self.targets.append(named.get("href", ""))
        elif tag in {"script", "img", "iframe", "source", "embed", "object"}:
            self.targets += [named[name] for name in ("src", "data") if name in named]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in a folder of this run."""
    python = Path(os.environ.get("DOCS_PYTHON") or ROOT / ".venv-docs/bin/python")
    if not python.exists():
        pytest.skip("mkdocs is not installed: `make docs`, or DOCS_PYTHON")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [python, "-m", "mkdocs", "build", "--strict", "--config-file", "tools/mkdocs.yml", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_has_its_place_in_one_part() -> None:
    pages = [page for each in nav().values() for page in each]
    assert list(nav()) == PARTS
    assert sorted(pages) == [str(path.relative_to(ROOT / "docs")) for path in files(ROOT / "docs", ".md")]


def test_mkdocs_makes_every_page_without_a_warning(site: Path) -> None:
    """Method: `--strict` makes an error of every warning, such as that of a link to a heading that is not there."""
    made = {str(path.relative_to(site).with_suffix(".md")) for path in files(site, ".html")}
    assert made == {page for each in nav().values() for page in each} | {"404.md"}


def test_no_row_of_a_table_stands_apart(site: Path) -> None:
    """Goal: no table is shown as its source, such as after an empty line. Method: paragraphs that begin with a bar."""
    assert [page.name for page in files(site, ".html") if "<p>|" in page.read_text(encoding="utf-8")] == []


def test_every_page_that_llms_txt_names_is_on_the_site(site: Path) -> None:
    links = re.findall(r"\]\((\S+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 20
    assert [link for link in links if not (site / link).is_file()] == []


def test_public_names_are_explained(site: Path) -> None:
    page = (site / "python.html").read_text(encoding="utf-8")
    for name in ("connect", "LeaseLost", "consume", "encode"):
        assert f'id="{name.lower()}"' in page
    assert "<code>retriable</code>: whether the same request can succeed later." in " ".join(page.split())


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    """Method: what the pages load is collected by a parser of HTML; what their styles load, by its notation in CSS."""
    for page in files(site, ".html"):
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.targets, page
        assert [target for target in parser.targets if re.match(r"(\w+:)?//", target)] == [], page
    for style in files(site, ".css"):
        assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*|@import", style.read_text(encoding="utf-8")) == [], style


def test_the_search_works_in_pages_that_are_opened_as_files(site: Path) -> None:
    """Method: Chromium opens the first page as a file, with a search in its address, and prints what it shows then."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    address = f"{(site / 'index.html').as_uri()}?q=retention"
    options = ("--headless", "--no-sandbox", "--virtual-time-budget=20000", "--dump-dom")
    shown = subprocess.run([chromium, *options, address], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "md-search-result__link" in shown


def test_a_bar_in_code_in_a_table_has_no_backslash() -> None:
    html = "<td><code>a\\|b</code></td><pre>c\\|d</pre>"
    assert on_page_content(html, page=None) == "<td><code>a|b</code></td><pre>c\\|d</pre>"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.md", "see [x](b.md#c), [y](../LICENSE) and [z](../examples/a.py#b).", "see [x](b.md#c), y and z."),
        ("how-to/a.md", "[x](../b.md) [y](../../README.md)", "[x](../b.md) y"),
        ("a.md", "![plot](plots/a.svg) [d](https://example.org/../x) [e](#f)", None),
    ],
)
def test_a_link_out_of_the_folder_becomes_text(name: str, text: str, expected: str | None) -> None:
    assert without_outside_links(text, name) == (text if expected is None else expected)
