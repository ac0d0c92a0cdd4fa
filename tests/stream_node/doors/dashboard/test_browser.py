"""Goal: an operator can do in a real browser what the dashboard is for, at a desk and on a phone.

Method: headless Chromium, driven by playwright, on a real node in a process of its own; axe looks for barriers. Without
Chromium or playwright the tests are skipped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ockam.identity.rules.tokens import create_token
from stream_client import blocking
from stream_client.blocking import connect
from stream_node.node.process import NodeProcess
from tests.block_node.backfill.served_blocks import remove_blocks
from tests.support.certificates import Authority
from tests.support.postgres import PostgresServer
from tools.dashboard_nodes import OWN_WORKERS, members_of_cluster, source_of_mirrors
from tools.dashboard_pictures import (
    CLUSTER_PAGES,
    PAGES,
    RULES,
    SIZES,
    NoBrowser,
    fill,
    fill_export,
    load,
    node_with_pages,
    open_browser,
    publish_blocks,
    traffic,
)

pytestmark = pytest.mark.slow
WAIT_MS = 30_000
BROKEN_WORDS = """
[...document.querySelectorAll("th, td, dt, dd, h2, nav a, button")].flatMap((each) => {
  const broken = [];
  const walk = document.createTreeWalker(each, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (node.parentElement.closest("td.name")) continue;
    for (const word of node.data.matchAll(/[A-Za-z0-9]{2,16}/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
      if (new Set(boxes.map((box) => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
})
"""
"""The words of at most 16 letters and digits that a page breaks into two lines. Names may be broken."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        with open_browser() as opened:
            yield opened
    except NoBrowser as error:
        pytest.skip(str(error))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    stuck = {"STREAM_NODE_CONSUMER_STUCK_AFTER": "billing=5s"}
    with NodeProcess(tmp_path / "data", arguments=["--http", "127.0.0.1:0"], environment=stuck) as running:
        yield running


class Window:
    """A window of the browser. faults: what the browser complained about, such as scripts that the policy forbids."""

    def __init__(
        self, browser: Any, node: NodeProcess, width: int = 1440, scheme: str = "light", *, has_tls: bool = False
    ) -> None:
        # The browser does not know the authority of the test, so the test compares the certificate itself.
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, ignore_https_errors=has_tls
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda line: self.faults.append(line.text) if line.type == "error" else None)
        self.url = f"{'https' if has_tls else 'http'}://{node.http[0]}/dashboard"

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *exception: object) -> None:
        self.context.close()

    def open(self, path: str) -> Any:
        """Opens a page. Returns the answer of the node."""
        return self.page.goto(self.url + path)

    def wait_value(self, expression: str) -> Any:
        """The value of an expression, once there is one. The page's policy forbids playwright's own way to wait."""
        for _ in range(WAIT_MS // 100):
            found = self.page.evaluate(expression)
            if found:
                return found
            self.page.wait_for_timeout(100)
        raise AssertionError(f"nothing for {expression}")

    def wait_text(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()


def test_an_operator_finds_a_way(browser: Any, node: NodeProcess) -> None:
    """Makes a stream, pushes to it by hand, sees the chart move, seeks, follows, is told of a stuck consumer, and sets
    its position, all by keys and clicks."""
    with Window(browser, node) as window:
        page = window.page
        window.open("/streams")
        page.get_by_label("Name", exact=True).fill("orders")
        page.get_by_role("button", name="Create").click()
        window.wait_text("The stream orders is there.")
        page.get_by_text("Push a message").click()
        page.get_by_label("Data").fill('{"order": 1}')
        page.get_by_role("button", name="Push", exact=True).click()
        window.wait_text("Message 0 is stored")
        with connect(node.address) as client:
            orders = client.create("orders")
            for number in range(1, 100):
                orders.push(f"message number {number}")
            blocking.set_position(client, "billing", "orders", 0, 40)
            # The chart has moved when one of its points is above zero.
            window.open("")
            page.locator("#charts[data-highest]:not([data-highest='0'])").wait_for()
            assert page.locator(".u-over").count() == 3
            window.open("/streams")
            page.keyboard.press("/")
            page.keyboard.type("ord")
            page.keyboard.press("Enter")
            page.get_by_role("link", name="100", exact=True).click()
            page.get_by_label("Begin at").fill("50")
            page.keyboard.press("Enter")
            window.wait_text("message number 50")
            assert page.get_by_text("message number 49").count() == 0
            page.locator("body").click()
            page.keyboard.press("[")
            window.wait_text("message number 49")
            page.get_by_role("link", name="Follow new messages").click()
            window.wait_text("Waiting for message 100")
            orders.push("fresh from the press")
            window.wait_text("fresh from the press")
            window.wait_text("Waiting for message 101")
        window.open("")
        page.get_by_text(
            re.compile("The consumer billing is stuck: no progress for .* 61 messages wait in orders")
        ).wait_for()
        page.get_by_role("link", name="This consumer").click()
        page.get_by_label("Read on from").fill("last")
        page.get_by_role("button", name="Set the position").click()
        window.wait_text("The position of billing is set")
        with connect(node.address) as client:
            (position,) = [each for each in blocking.list_positions(client, client_id="billing")]
        assert position.index == 100
        assert window.faults == []


@pytest.mark.parametrize(("width", "scheme"), SIZES.items())
def test_pages_fit_and_have_no_barriers(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """No page is wider than its window, no short word is broken, axe finds nothing serious, no text is empty, and the
    browser complains about nothing, such as something from outside."""
    pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
    lake = tmp_path / "lake"
    with node_with_pages(tmp_path, lake) as node:
        fill(node.address)
        fill_export(node.address, lake)
        publish_blocks(node.address, 3)
        with (
            traffic(node.address),
            source_of_mirrors(tmp_path, node.address),
            Window(browser, node, width, scheme) as window,
        ):
            look_at({name: path.replace("FOLDER", quote(str(lake))) for name, path in PAGES.items()}, window, width)


@pytest.mark.parametrize(("width", "scheme"), SIZES.items())
def test_pages_of_a_cluster_fit_and_show_what_moves(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """The same for a member of a cluster. Then a drain is taken back by the form; the open page shows the shards move,
    without a click, and what was opened on it stays open."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    with (
        PostgresServer() as server,
        members_of_cluster(tmp_path, server.url) as (node, *_),
        Window(browser, node, width, scheme) as window,
    ):
        look_at(CLUSTER_PAGES, window, width)
        page = window.page
        window.open("/cluster")
        assert page.locator("table.shards tbody td", has_text="C").count() == 0
        page.get_by_text("Take a drain back").click()
        page.get_by_role("button", name="Let it take shards").click()
        window.wait_text("west takes shards again.")
        page.get_by_text("Drain a member").click()
        page.get_by_label("Type the name of the member").fill("sou")
        page.evaluate("window.sameDocument = true")
        page.locator("table.shards tbody td", has_text="C").first.wait_for()
        page.get_by_text("west has joined, or takes shards again").nth(2).wait_for()
        assert page.evaluate("window.sameDocument")
        assert page.get_by_label("Type the name of the member").input_value() == "sou"
        assert window.faults == []


def look_at(pages: dict[str, str], window: Window, width: int) -> None:
    """Opens pages, and checks that none is too wide for the window and that axe and the browser find nothing wrong."""
    axe = load("axe_playwright_python.sync_playwright").Axe()
    for name, path in pages.items():
        answer = window.open(path)
        assert answer.status == 200, name
        window.page.locator("h1").wait_for()
        assert window.page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert window.page.evaluate(BROKEN_WORDS) == [], name
        # Open everything that opens, since a form could be too wide, too.
        window.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert window.page.evaluate("document.documentElement.scrollWidth") <= width, name
        found = axe.run(window.page).response["violations"]
        assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == [], (name, found)
    assert window.faults == []


def test_an_export_leads_to_its_messages(browser: Any, tmp_path: Path) -> None:
    """From the list of exports to a run that failed, to one that did not, and to the messages of its range."""
    pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
    lake = tmp_path / "lake"
    with node_with_pages(tmp_path, lake) as node, Window(browser, node) as window:
        fill(node.address)
        window.open("/exports")
        window.wait_text(f"there is no history of exports at {lake}")
        fill_export(node.address, lake)
        page = window.page
        page.reload()
        page.get_by_role("link", name=str(lake)).click()
        window.wait_text("the disk of lake is full; free space and run again")
        page.get_by_role("link", name="A run that failed").click()
        page.get_by_role("alert").wait_for()
        page.get_by_role("link", name=str(lake)).click()
        page.get_by_role("link", name="3", exact=True).click()
        page.get_by_role("heading", name="run 3").wait_for()
        page.get_by_role("link", name="orders").click()
        assert page.locator("table.messages td.n").first.inner_text() == "40"
        assert window.faults == []


def test_a_gap_is_seen_to_fill(browser: Any, tmp_path: Path) -> None:
    """Backfill has a source that is away: the open page of blocks shows the gap and the failing source. The source
    comes back, and the same page shows the gap filled, without a click."""
    source, chosen = NodeProcess(tmp_path / "source"), tmp_path / "data"
    environment = {
        "STREAM_NODE_BACKFILL_SCAN_INTERVAL_SECS": "0.5",
        "STREAM_NODE_BACKFILL_INITIAL_RETRY_DELAY_SECS": "0.1",
        "STREAM_NODE_BACKFILL_MAX_BACKOFF_SECS": "1",
    }
    picture = "svg.ranges[aria-label='Blocks 0 to 29: {} are missing']"
    arguments = ["--http", "127.0.0.1:0"]
    with ExitStack() as stack:
        stack.enter_context(source)
        publish_blocks(source.address, 30)
        environment["STREAM_NODE_BACKFILL_BLOCK_NODE_SOURCES"] = source.address
        node = stack.enter_context(NodeProcess(chosen, arguments=arguments, environment=environment))
        window = stack.enter_context(Window(browser, node))
        window.open("/blocks")
        window.page.locator(picture.format(0)).wait_for()
        source.kill()
        assert remove_blocks(chosen, 10, 19) > 0
        window.page.locator(picture.format(10)).wait_for()
        gap = window.page.locator("span.tag", has_text="10 to 19")
        gap.wait_for()
        window.page.locator("td", has_text="asked again").wait_for()
        assert window.page.locator("svg.ranges .missing").count() == 1
        window.page.evaluate("window.sameDocument = true")
        source.start()
        window.page.locator(picture.format(0)).wait_for()
        assert window.page.locator("svg.ranges .missing").count() == 0
        assert gap.count() == 0
        assert window.page.evaluate("window.sameDocument")
        assert window.faults == []


def test_an_operator_signs_in_over_tls(browser: Any, tmp_path: Path) -> None:
    """A token that is typed into the form opens the pages, by a cookie that only HTTPS carries and no script reads; a
    wrong one is refused, and signing out closes the pages again."""
    certificate, key = Authority(tmp_path).issue("node", hosts=("127.0.0.1",))
    rules, data = tmp_path / "access.toml", tmp_path / "data"
    rules.write_text(RULES.replace('["*"]', '["token:watcher"]', 1))
    data.mkdir()
    token = create_token(data / "tokens.json", "watcher", int(time.time()))[0]
    arguments = ["--http", "127.0.0.1:0", "--access-rules", str(rules)]
    environment = {"STREAM_NODE_TLS_CERTIFICATE": certificate, "STREAM_NODE_TLS_CERTIFICATE_KEY": key}
    with (
        NodeProcess(data, arguments=arguments, environment=environment) as node,
        Window(browser, node, has_tls=True) as window,
    ):
        page = window.page
        shown = window.open("/access")
        assert shown.status == 403
        details = shown.security_details()
        assert (details["protocol"], details["issuer"]) == ("TLS 1.3", "authority")
        assert page.get_by_role("link", name="Access").count() == 0
        page.get_by_role("link", name="Sign in", exact=True).click()
        for typed in ("wrong", token):
            page.get_by_label("Token").fill(typed)
            page.get_by_role("button", name="Sign in").click()
            if typed == "wrong":
                page.get_by_role("alert").wait_for()
                assert [each for each in window.context.cookies() if not each["secure"]] == []
        # The sign-in leads to the page that was refused.
        page.get_by_role("heading", name="Rules in force").wait_for()
        assert page.url == window.url + "/access"
        assert page.get_by_text("token:watcher").count() >= 2
        (cookie,) = window.context.cookies()
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
        assert (cookie["path"], page.evaluate("document.cookie")) == ("/dashboard", "")
        page.get_by_role("button", name="Sign out").click()
        window.wait_text("You have signed out.")
        assert window.open("/access").status == 403
        # The browser itself logs each refusal as a failure to load.
        assert [each for each in window.faults if "Failed to load resource" not in each] == []


def test_the_tree_of_own_workers_is_seen_to_change(browser: Any, tmp_path: Path) -> None:
    """A child that does not come up stands below its parent with the reason, and its restarts are seen to grow without
    a click, also on a phone."""
    with NodeProcess(tmp_path / "data", arguments=["--http", "127.0.0.1:0", *OWN_WORKERS]) as node:
        for width, scheme in SIZES.items():
            with Window(browser, node, width, scheme) as window:
                window.open("")
                window.page.get_by_role("link", name="Own workers").click()
                row = window.page.locator("tr.bad", has_text="shop.payments")
                row.get_by_text("the bank at bank.example.com:443 does not answer").wait_for()
                cells = [each.inner_text().strip() for each in window.page.locator("td.name").all()]
                assert cells == ["shop", "└ shop.orders", "└ shop.payments"]
                restarts = "td[data-label=Restarts]"
                before = int(row.locator(restarts).inner_text())
                window.wait_value(f"+document.querySelectorAll('{restarts}')[2].innerText > {before}")
                assert window.faults == []


def test_a_thousand_streams_paint_at_once(browser: Any, node: NodeProcess) -> None:
    """The list of a thousand streams is painted within a second, and the page with its files is below 150 KB. The best
    of three tries counts, since the machine has other work, too."""
    with connect(node.address) as client:
        for number in range(1_000):
            client.create(f"stream-{number:04}")
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    sizes = "performance.getEntries().reduce((sum, each) => sum + (each.transferSize ?? 0), 0)"
    painted, size = [], 0
    for _ in range(3):
        with Window(browser, node) as window:
            window.open("/streams")
            window.wait_text("1 to 50 of 1,000 streams")
            painted.append(window.wait_value(paint))
            size = window.page.evaluate(sizes)
    assert min(painted) < 1_000
    assert 10_000 < size < 150_000
