"""Goal: an operator can do in a real browser what the dashboard is for, at a desk and on a phone.

Method: headless Chromium, driven by playwright, on a real node in a process of its own; axe looks for barriers. Without
Chromium or playwright the tests are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_client import blocking
from stream_client.blocking import connect
from stream_node.process import NodeProcess
from tools.dashboard_pictures import PAGES, SIZES, NoBrowser, fill, load, open_browser, publish_blocks, traffic

pytestmark = pytest.mark.slow
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        with open_browser() as opened:
            yield opened
    except NoBrowser as error:
        pytest.skip(str(error))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data", arguments=["--http", "127.0.0.1:0"]) as running:
        yield running


class Window:
    """A window of the browser. faults: what the browser complained about, such as scripts that the policy forbids."""

    def __init__(self, browser: Any, node: NodeProcess, width: int = 1440, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda line: self.faults.append(line.text) if line.type == "error" else None)
        self._url = f"http://{node.http[0]}/dashboard"

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *exception: object) -> None:
        self.context.close()

    def open(self, path: str) -> None:
        self.page.goto(self._url + path)

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
def test_pages_fit_and_have_no_barriers(browser: Any, node: NodeProcess, width: int, scheme: str) -> None:
    """No page is wider than its window, axe finds nothing serious, no text is empty, and the browser complains about
    nothing, such as something from outside."""
    fill(node.address)
    publish_blocks(node.address, 3)
    axe = load("axe_playwright_python.sync_playwright").Axe()
    with traffic(node.address), Window(browser, node, width, scheme) as window:
        for name, path in PAGES.items():
            window.open(path)
            window.page.locator("h1").wait_for()
            assert window.page.evaluate("document.documentElement.scrollWidth") <= width, name
            # Open everything that opens, since a form could be too wide, too.
            window.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            assert window.page.evaluate("document.documentElement.scrollWidth") <= width, name
            found = axe.run(window.page).response["violations"]
            assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == [], (name, found)
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
