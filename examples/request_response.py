"""Send a request to a service over streams. The request goes to the stream of the service, and the answer to the stream
of the client.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/request_response.py
"""

from __future__ import annotations

import os

import trio

from ockam.actors.address import local
from stream_client import SavedIndexes, StreamClient, connect

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")
SHOUTER = "examples.shouter"


async def shout(client: StreamClient) -> None:
    """The service: answers each request with the same text in capital letters.

    It continues from its saved position, so after a restart it answers the requests that arrived in the meantime.
    """
    me = await client.correspondent(SHOUTER)
    async with me.inbox.consumer(SavedIndexes(client, SHOUTER)) as requests:
        async for request in me.routed(requests.messages()):
            await me.reply(request, request.payload.upper())


async def main() -> None:
    async with connect(ADDRESS) as client, trio.open_nursery() as nursery:
        nursery.start_soon(shout, client)
        me = await client.correspondent()
        for question in (b"is anybody there?", b"thank you"):
            answer = await me.request(SHOUTER, (local("shouter"),), question)
            print(f"{question.decode()} -> {answer.payload.decode()}")
        nursery.cancel_scope.cancel()


trio.run(main)
