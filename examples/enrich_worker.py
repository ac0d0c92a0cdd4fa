"""A worker on a node enriches each order of one stream, and puts it into another: exactly once, whatever is killed.

python examples/enrich_worker.py"""

import json
import tempfile

import structlog
import trio

from ockam import AsyncWorker
from stream_client import FromIndex, SavedIndexes, connect
from stream_node import Config, HostNode, Server


class Enrich(AsyncWorker):
    node: HostNode

    async def run(self) -> None:
        async with self.node.client() as client:
            source, target = await client.create("orders"), await client.create("enriched")
            positions = SavedIndexes(client, "enrich")
            index = await positions.get(source.name)
            while True:
                page = await source.pull_page(FromIndex(index), 500, wait_s=5.0)
                # The number of a message is the index of its order. So a message pushed twice is stored only once.
                async with target.publisher(publisher_id=b"enrich", first_number=index) as publisher:
                    for message in page.messages:
                        await publisher.push(enriched(message.data))
                index = page.resume_index
                await positions.save(source.name, {0: index})


def enriched(data: bytes) -> bytes:
    try:
        order = json.loads(data)
        return json.dumps(order | {"price": {"tea": 3, "coffee": 4}[order["what"]] * order["count"]}).encode()
    except (ValueError, KeyError, TypeError) as error:
        return json.dumps({"rejected": data.decode(errors="replace"), "why": type(error).__name__}).encode()


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    server = Server(Config(data_dir=tempfile.mkdtemp(), listen="127.0.0.1:0"), workers={"enrich": Enrich})
    async with trio.open_nursery() as nursery:
        async with connect((await nursery.start(server.serve))[0]) as client:
            orders, messages = await client.create("orders"), (await client.create("enriched")).follow()
            for order in (b'{"what": "tea", "count": 2}', b"?", b'{"what": "coffee", "count": 1}'):
                await orders.push(order)
                print((await anext(messages)).data.decode())
        server.stop()


if __name__ == "__main__":
    trio.run(main)
