"""Goal: a worker that enriches what goes from one stream to the next loses and doubles nothing when it is killed.

Method: the example on a node of the real command, which is killed (SIGKILL) while orders are pushed. What comes out is
compared, message by message, with what a plain loop makes of the confirmed orders.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from stream_client import ClientError, blocking
from stream_node.node.process import NodeProcess
from tests.test_examples import ROOT

KILLS = 4
ORDERS = 2_000
PATIENCE_S = 120.0
PRICES = {"tea": 3, "coffee": 4}


def order(number: int) -> bytes:
    if number % 7 == 3:
        return b"no order %d" % number
    return json.dumps({"what": ("tea", "coffee")[number % 2], "count": number}).encode()


def expected(data: bytes) -> object:
    if data.startswith(b"no order"):
        return {"rejected": data.decode(), "why": "JSONDecodeError"}
    plain = json.loads(data)
    return {**plain, "price": PRICES[plain["what"]] * plain["count"]}


def pushed_until_killed(node: NodeProcess, rng: random.Random, first: int) -> int:
    """Pushes orders from `first` on, and kills the node on the way. Returns how many orders it has stored."""
    count = rng.randrange(50, ORDERS // KILLS)
    try:
        with blocking.connect(node.address, reconnect=None) as client:
            publisher = client.create("orders").publisher(publisher_id=b"shop", first_number=first)
            for number in range(first, first + count):
                publisher.push(order(number))
            time.sleep(rng.random() * 0.2)
            node.kill()
    except ClientError:
        pass
    node.kill()
    node.start()
    with blocking.connect(node.address) as client:
        return client.create("orders").info().next_index


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worker", "kills"),
    [("enrich_worker:Enrich", KILLS), ("tests.stream_node.hosting.sample_stumbling:Stumbling", 1)],
    ids=["the node is killed", "the worker crashes too"],
)
def test_no_order_is_lost_or_doubled(tmp_path: Path, worker: str, kills: int) -> None:
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"}
    arguments = ["--worker", f"{worker}@enrich"]
    rng = random.Random(1_735)
    with NodeProcess(tmp_path / "data", arguments=arguments, environment=environment) as node:
        stored = 0
        for _ in range(kills):
            stored = pushed_until_killed(node, rng, stored)
        with blocking.connect(node.address) as client:
            orders, enriched = client.create("orders"), client.create("enriched")
            with orders.publisher(publisher_id=b"shop", first_number=stored) as publisher:
                for number in range(stored, ORDERS):
                    publisher.push(order(number))
            deadline_s = time.monotonic() + PATIENCE_S
            while enriched.info().next_index < ORDERS:
                assert time.monotonic() < deadline_s, "the worker does not go on"
                time.sleep(0.05)
            found = [json.loads(message.data) for message in enriched.follow(stop_at_end=True)]
            assert [message.data for message in orders.follow(stop_at_end=True)] == [
                order(each) for each in range(ORDERS)
            ]
    assert found == [expected(order(number)) for number in range(ORDERS)]
