"""A page of the dashboard as a test sees it: its text, links, forms and tables, read by the parser of the library."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import trio

from tests.support.served import PATIENCE_S

VOID = {"meta", "link", "input", "br", "img", "hr"}


class HtmlPage(HTMLParser):
    """text: what a reader sees, with single spaces. tags: every element with its attributes, in order.

    forms: for each form its action and the names and values of its fields. rows: the texts of the cells of each row of
    a table that has values. tiles: the first value of each tile, by its title.
    Raises AssertionError if elements are not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.forms: list[tuple[str, dict[str, str]]] = []
        self.rows: list[list[str]] = []
        self.tiles: dict[str, str] = {}
        self._title = ""
        self._open: list[str] = []
        self._texts: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []
        self.text = " ".join(" ".join(self._texts).split())
        self.rows = [[" ".join(cell.split()) for cell in row] for row in self.rows if row]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        if tag == "form":
            self.forms.append((given.get("action", ""), {}))
        elif tag in ("input", "select", "textarea") and self.forms and "name" in given:
            # A browser does not send a box that is not ticked.
            if given.get("type") == "checkbox" and "checked" not in given:
                return
            self.forms[-1][1][given["name"]] = given.get("value", "")
        if tag == "tr":
            self.rows.append([])
        elif tag == "td" and self.rows:
            self.rows[-1].append("")
        elif tag == "dt":
            self._title = ""
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1:] == [tag], self._open
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self._texts.append(data)
            if "dt" in self._open:
                self._title += data
            elif self._open[-1:] == ["dd"]:
                self.tiles.setdefault(self._title, data)
            if "td" in self._open and self.rows and self.rows[-1]:
                self.rows[-1][-1] += data

    def links(self, path: str) -> list[dict[str, str]]:
        """The queries of all links to a path."""
        hrefs = (given.get("href", "") for tag, given in self.tags if tag == "a")
        found = (urlsplit(href) for href in hrefs)
        return [{k: v[0] for k, v in parse_qs(each.query).items()} for each in found if each.path == path]

    def form(self, action: str) -> dict[str, str]:
        """The fields of the form that sends something to this path."""
        return next(fields for target, fields in self.forms if urlsplit(target).path == action and "csrf" in fields)


async def get(client: httpx.AsyncClient, path: str, status: int = 200, /, **query: Any) -> HtmlPage:
    """Loads a page, and checks that nothing in it can run a script of somebody else."""
    answer = await client.get(f"/dashboard{path}", params=query)
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    # With no-referrer, a browser sends forms with the origin "null", which the node refuses.
    assert answer.headers["referrer-policy"] == "same-origin"
    page = HtmlPage(answer.text)
    for tag, given in page.tags:
        assert not [name for name in given if name.startswith("on") or name == "style"], (tag, given)
        assert tag != "script" or given["src"].startswith("/dashboard/static/")
        for name in ("src", "href", "action", "hx-get", "hx-post"):
            assert name not in given or given[name].startswith(("/dashboard", "#")), (tag, given)
    return page


async def wait_page(client: httpx.AsyncClient, text: str, path: str = "") -> HtmlPage:
    """Loads a page until it has a text."""
    with trio.fail_after(PATIENCE_S):
        while True:
            page = await get(client, path)
            if text in page.text:
                return page
            await trio.sleep(0.05)


async def send(client: httpx.AsyncClient, page: HtmlPage, action: str, **fields: str) -> httpx.Response:
    """Sends a form of a page, with some fields changed, as a browser does."""
    given = page.form(action) | fields
    return await client.post(action, data=given, headers={"origin": str(client.base_url).rstrip("/")})
