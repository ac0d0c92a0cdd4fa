"""Three clients that accept no connections chat through addresses on a node. Messages wait there for a client that is
away. The node needs the setting `forwarding`: STREAM_NODE_FORWARDING=true stream-node serve
STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/chat.py"""

import os

import trio

from ockam import Address, Message, Node, TcpTransport, Worker, local
from ockam.actors.forwarding_protocol import DELIVERY, FORWARD, REGISTER, ForwardRequest, RegisterRequest, Taken


class Chat(Worker):
    def __init__(self, name: str, node: Address) -> None:
        self.name, self.node, self.heard = name, node, trio.open_memory_channel[bytes](99)
        self.answers = trio.open_memory_channel[bytes](99)

    async def ask(self, to: str, payload: bytes) -> None:
        self.context.send(Message((self.node, local(to)), (local("chat"),), payload))
        await self.answers[1].receive()

    async def say(self, to: str, text: bytes) -> None:  # returns when the text is on disk, also if nobody is there
        await self.ask(f"forward_to_{to}", FORWARD.encode_request(ForwardRequest(0, text)))

    def handle(self, message: Message) -> None:
        if not DELIVERY.is_in(message.payload):
            return self.answers[0].send_nowait(message.payload)
        delivery = DELIVERY.decode_request(message.payload)
        self.heard[0].send_nowait(delivery.payload)
        done = DELIVERY.encode_response(Taken(delivery.index))  # a confirmed message does not come again
        self.context.send(Message((self.node, local(f"forward_to_{self.name}")), (local("chat"),), done))


async def join(nursery: trio.Nursery, name: str) -> Chat:
    node = Node(nursery)
    chat = Chat(name, await TcpTransport(node, nursery).connect(os.environ["STREAM_NODE_ADDRESS"]))
    node.register([local("chat")], lambda: chat)
    await chat.ask("forwarding_service", REGISTER.encode_request(RegisterRequest(0, name, stores=True, confirms=True)))
    return chat


async def main() -> None:
    async with trio.open_nursery() as home:
        alice, bob = await join(home, "alice"), await join(home, "bob")
        async with trio.open_nursery() as train:
            await (await join(train, "carol")).say("alice", b"there is a tunnel soon")
            train.cancel_scope.cancel()
        await alice.say("carol", b"we meet at five")
        await bob.say("carol", b"bring the plan")
        for chat, count in ((alice, 1), (await join(home, "carol"), 2)):
            print(chat.name, "heard", [await chat.heard[1].receive() for _ in range(count)])
        home.cancel_scope.cancel()


trio.run(main)
