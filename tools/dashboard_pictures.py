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
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import trio

from bench.servers.postgres_server import PostgresServer, find_programs
from block_node.blocks.generator import BlockShape, ChainGenerator, SigningKeys
from block_node.client import OutgoingBlock
from block_node.client import connect as connect_blocks
from cardinal_streams.message.messages import Batch, encode
from stream_client import AccessDenied, blocking
from stream_client.blocking import connect
from stream_node.node.process import NodeProcess
from tools.dashboard_nodes import OWN_WORKERS, members_of_cluster, source_of_mirrors

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
    "mirrors": "/mirrors",
    "own-workers": "/own-workers",
    "exports": "/exports",
    "export": "/export?folder=FOLDER",
    "export-run": "/export/run?folder=FOLDER&run=3",
    "access": "/access",
    "sign-in": "/sign-in",
}
"""The pages that are looked at, by the names of their pictures. FOLDER stands for the folder of the export."""
CLUSTER_PAGES = {"cluster": "/cluster"}
"""The pages that only a member of a cluster has."""
HEIGHT = 900
"""The height of the window, in pixels."""
HEIGHTS = {"cluster": 1330}
"""The heights of windows that show a picture as a whole."""
IN_DOCS = {
    1440: ("overview", "streams", "messages", "forks", "consumer", "blocks", "export", "access", "cluster", "mirrors"),
    390: ("overview", "messages", "export"),
}
"""The pages whose pictures are in the documentation."""
RULES = """
[[rule]]
name = "everybody"
who = ["*"]
may = ["all"]
on = [""]

[[rule]]
name = "the vault is closed"
who = ["*"]
may_not = ["all"]
on = ["vault/"]
"""
"""The rules of the node. There are refusals to show, and everything else is allowed."""
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


def node_with_pages(folder: Path, export: Path) -> NodeProcess:
    """Returns a node that has all pages, with its data and its rules in `folder`.

    export: the folder of an export, which `fill_export` makes. The folder of another export is missing."""
    (folder / "access.toml").write_text(RULES)
    return NodeProcess(
        folder / "data",
        arguments=["--http", "127.0.0.1:0", "--access-rules", str(folder / "access.toml"), *OWN_WORKERS],
        environment={
            "STREAM_NODE_EXPORT_FOLDERS": f"{export},old-lake",
            "STREAM_NODE_CONSUMER_STUCK_AFTER": "billing=5s",
        },
    )


def fill(address: str) -> None:
    """Puts streams, messages and consumers into a node; the consumer billing does not go on."""
    with connect(address) as client:
        for number in range(3):
            with suppress(AccessDenied):
                client.create(f"vault/{number}")
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


def fill_export(address: str, folder: Path) -> None:
    """Writes the history of an export of the streams of `fill`: nine runs that ended well, and one that failed."""
    from spark_export.exporter import history
    from spark_export.exporter.planning import ExportStep
    from spark_export.tables.model import Incarnation, IndexRange

    with connect(address) as client:
        made = {each.stream_name: each.created_us for each in client.list_streams()}
    now_us = time.time_ns() // 1_000

    def step(number: int) -> ExportStep:
        orders = Incarnation("orders", 0, 0, made["orders"])
        first = IndexRange(orders, 20 * number if number else 4, 20 * number + 20, lost=0 if number else 4)
        payments = (Incarnation("payments", each, 0, made["payments"]) for each in range(3))
        parts = (first, *(IndexRange(of, number, number + 1) for of in payments))
        return ExportStep(number + 1, parts, sum(each.rows for each in parts), 1_500, 16_384, len(parts), 7.0)

    def write() -> None:
        export = history.ExportHistory(folder / history.FILE)
        for number in range(9):
            start_us = now_us - (9 - number) * 3_600_000_000
            with mock.patch.object(history, "_now_us", lambda at_us=start_us + 7_000_000: at_us):
                export.begin("5f0c2a", str(folder), "parquet", "export-lake-5f0c2a")
                export.add_run(step(number), start_us)
                if number == 4:
                    export.add_failure("the disk of lake is full; free space and run again", start_us)

    folder.mkdir(parents=True, exist_ok=True)
    # The browser's driver has an event loop of its own in this thread.
    run_in_thread(write)


def run_in_thread(work: Callable[[], None]) -> None:
    """Does work in another thread, and waits for its end."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def publish_blocks(address: str, count: int) -> None:
    """Publishes a chain of generated blocks."""
    chain = ChainGenerator(SigningKeys.generate(1), shape=BlockShape(item_count=8, item_bytes=50))
    outgoing = [OutgoingBlock.from_items(block.items) for block in chain.blocks(count)]

    async def run() -> None:
        async with connect_blocks(address) as client, client.publisher() as publisher:
            for block in outgoing:
                await publisher.send(block)

    # The browser's driver has an event loop of its own in this thread.
    run_in_thread(lambda: trio.run(run))


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
    """Takes all pictures into a folder. Those of a cluster are taken only if PostgreSQL is installed."""
    with (
        tempfile.TemporaryDirectory() as data,
        # The pictures show the name of the export, and no path of this machine.
        chdir(data),
        open_browser() as browser,
        node_with_pages(Path(data), Path("lake")) as node,
    ):
        fill(node.address)
        fill_export(node.address, Path("lake"))
        publish_blocks(node.address, 30)
        with traffic(node.address), source_of_mirrors(Path(data), node.address):
            threading.Event().wait(WATCHED_S)
            take_pages(browser, node, PAGES, folder)
        if find_programs() is not None:
            with PostgresServer() as server, members_of_cluster(Path(data), server.url) as (member, *_):
                take_pages(browser, member, CLUSTER_PAGES, folder)


def take_pages(browser: Any, node: NodeProcess, pages: dict[str, str], folder: Path) -> None:
    """Takes the pictures of some pages of one node into a folder."""
    for width, scheme in SIZES.items():
        context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
        page = context.new_page()
        for name, path in pages.items():
            if folder == IMAGES and name not in IN_DOCS[width]:
                continue
            page.set_viewport_size({"width": width, "height": HEIGHTS.get(name, HEIGHT)})
            page.goto(f"http://{node.http[0]}/dashboard{path.replace('FOLDER', 'lake')}")
            page.wait_for_timeout(1_500)
            page.screenshot(path=folder / f"dashboard-{name}-{width}.png", full_page=folder != IMAGES)
        context.close()


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else IMAGES
    target.mkdir(parents=True, exist_ok=True)
    take(target)
