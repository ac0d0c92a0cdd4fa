"""Takes the pictures of the dashboard in `docs/images/`: a node with real data, looked at with Chromium.

    BROWSER_FOLDER=FOLDER PYTHONPATH=. python tools/dashboard_pictures.py

Needs Chromium, and the package playwright in the environment or in BROWSER_FOLDER. The tests of the dashboard use the
browser and the data of this script.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from block_node.blocks.generator import BlockShape, ChainGenerator
from block_node.blocks.keys import SigningKeys
from block_node.client import OutgoingBlock
from block_node.client import connect as connect_blocks
from cardinal_streams.message.messages import encode
from cardinal_streams.message.types import Batch
from stream_client import blocking
from stream_client.blocking import connect
from stream_node.process import NodeProcess

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
SIZES = {1440: "light", 390: "dark"}
"""The widths of the pictures, in pixels, each with its scheme of colours."""
PAGES = {
    "overview": "",
    "streams": "/streams",
    "stream": "/stream?name=orders",
    "messages": "/messages?stream=orders&start=40",
    "message": "/message?stream=orders&index=40",
    "forks": "/forks?stream=chain",
    "consumers": "/consumers",
    "consumer": "/consumer?client=billing&stream=orders",
    "blocks": "/blocks",
    "sign-in": "/sign-in",
}
"""The pages that are looked at, by the names of their pictures."""
IN_DOCS = {1440: ("overview", "streams", "messages", "forks", "consumer", "blocks"), 390: ("overview", "messages")}
"""The pages whose pictures are in the documentation."""
WATCHED_S = 30.0
"""How long the node works before the pictures are taken, in seconds, so that the charts have something to show."""


class NoBrowser(Exception):
    """Error: there is no browser, or nothing to drive it. The text says what to install."""


def load(name: str) -> Any:
    """Imports a module from the environment or from the folder BROWSER_FOLDER. Raises NoBrowser."""
    folder = os.environ.get("BROWSER_FOLDER")
    if folder and folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = "pip install --target FOLDER playwright axe-playwright-python, and BROWSER_FOLDER=FOLDER"
        raise NoBrowser(f"no {name.partition('.')[0]}: {hint}") from error


@contextmanager
def open_browser() -> Iterator[Any]:
    """Runs Chromium without a window. Raises NoBrowser."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise NoBrowser("no chromium: apt-get install chromium")
    with load("playwright.sync_api").sync_playwright() as playwright:
        # Chromium has no sandbox for the user root, and CI is root. It sees pages of our own node only.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def fill(address: str) -> None:
    """Puts streams, messages and consumers into a node; the consumer billing does not go on."""
    with connect(address) as client:
        orders = client.create("orders")
        for number in range(200):
            push_order(orders, number)
        payments = client.create_partitioned("payments", 3)
        for number in range(60):
            payments.push(f"payment {number}", key=f"customer-{number % 17}")
        for number in range(12):
            client.create(f"sensors/hall-{number}").push(bytes([number, 2, 255, 0]))
        push_chain(client.create("chain"))
        blocking.set_position(client, "billing", "orders", 0, 120)
        blocking.set_position(client, "shipping", "orders", 0, 200)
        for partition in range(3):
            blocking.set_position(client, "audit", "payments", partition, 5)


def push_order(orders: Any, number: int) -> None:
    """Pushes one message as a shop would."""
    order = {"order": number, "customer": f"customer-{number % 17}", "total": round(number * 1.37 % 90, 2)}
    orders.push(json.dumps(order), key=f"customer-{number % 17}", headers={"content-type": "application/json"})


def push_chain(stream: Any) -> None:
    """Pushes a chain of Cardinal Streams with forks and reorgs."""
    randomness = random.Random(4)
    tips, weight = [(hashlib.sha256(b"genesis").digest(), 100)], 0
    for number in range(40):
        parent, height = tips[-1] if randomness.random() < 0.8 else randomness.choice(tips[-3:])
        weight += randomness.randint(1, 3)
        hash_ = hashlib.sha256(bytes([number])).digest()
        record = encode(Batch(hash_, height + 1, parent, (height + 1) * 10 + weight % 5))
        stream.push(record.value, key=record.key)
        tips.append((hash_, height + 1))


def publish_blocks(address: str, count: int) -> None:
    """Publishes a chain of generated blocks."""
    chain = ChainGenerator(SigningKeys.generate(1), shape=BlockShape(item_count=8, item_bytes=50))
    outgoing = [OutgoingBlock.from_items(block.items) for block in chain.blocks(count)]

    async def run() -> None:
        async with connect_blocks(address) as client, client.publisher() as publisher:
            for block in outgoing:
                await publisher.send(block)

    # The browser's driver has an event loop of its own in this thread.
    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    thread.join()


@contextmanager
def traffic(address: str) -> Iterator[None]:
    """Pushes and pulls without end while the block runs."""
    ends = threading.Event()

    def work() -> None:
        with connect(address) as client:
            orders, number = client.create("orders"), 200
            while not ends.wait(0.1):
                for _ in range(20):
                    push_order(orders, number)
                    number += 1
                orders.pull(number - 10, 10)
                blocking.set_position(client, "shipping", "orders", 0, number)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def take(folder: Path) -> None:
    """Takes all pictures into a folder."""
    with (
        tempfile.TemporaryDirectory() as data,
        open_browser() as browser,
        NodeProcess(Path(data) / "data", arguments=["--http", "127.0.0.1:0"]) as node,
    ):
        fill(node.address)
        publish_blocks(node.address, 30)
        with traffic(node.address):
            threading.Event().wait(WATCHED_S)
            for width, scheme in SIZES.items():
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page = context.new_page()
                for name, path in PAGES.items():
                    if folder == IMAGES and name not in IN_DOCS[width]:
                        continue
                    page.goto(f"http://{node.http[0]}/dashboard{path}")
                    page.wait_for_timeout(1_500)
                    page.screenshot(path=folder / f"dashboard-{name}-{width}.png", full_page=folder != IMAGES)
                context.close()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    target.mkdir(parents=True, exist_ok=True)
    take(target)
