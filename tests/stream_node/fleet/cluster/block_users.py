"""Users of the block node of a cluster: one that publishes a chain, and one that subscribes to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock, SigningKeys
from block_node.client import OutgoingBlock, PublishSettings
from block_node.client.blocking import connect
from block_node.persist.mark import STREAM_PREFIX, key_of
from stream_client import Reconnect
from stream_node.fleet.cluster.view import shard_of
from stream_service.names import stream_address
from tests.stream_node.fleet.cluster.nodes import User, wait_for

CHAIN_STREAM = STREAM_PREFIX + "blocks"
CHAIN_SHARD = shard_of(stream_address(CHAIN_STREAM, 0))
ANSWER_S = 20.0
AGAIN = Reconnect(delay_s=0.05, delay_s_max=0.5)


class BlockSource(User):
    """Publishes the blocks of one chain, each one when it was made, at one node after another.

    blocks: those that were made until now. acknowledged: the number of the newest one that is known to be durable.
    """

    def __init__(self, addresses: Sequence[str], *, shape: BlockShape | None = None, pause_s: float = 0.05) -> None:
        super().__init__("source of blocks")
        self._addresses = list(addresses)
        self._pause_s = pause_s
        self._generator = ChainGenerator(SigningKeys.generate(key_bits=2048), shape=shape)
        self.blocks: list[GeneratedBlock] = []
        self.acknowledged = -1

    def work(self) -> None:
        settings = PublishSettings(kept_blocks_max=32, reconnect=AGAIN, answer_s_max=ANSWER_S)
        with connect(self._addresses, answer_s_max=ANSWER_S) as client, client.publisher(settings) as publisher:
            while not self.is_over:
                block = self._generator.next_block()
                self.blocks.append(block)
                publisher.send(OutgoingBlock.from_items(block.items))
                if publisher.acknowledged is not None:
                    self.acknowledged = publisher.acknowledged
                time.sleep(self._pause_s)
            publisher.flush()
            assert publisher.acknowledged == len(self.blocks) - 1
            self.acknowledged = publisher.acknowledged

    def wait(self, count: int) -> None:
        """Returns after so many further blocks are durable."""
        wanted = self.acknowledged + count
        wait_for(lambda: self.acknowledged >= wanted or not self.is_alive())
        assert self.is_alive(), self.failure


class BlockReader(User):
    """Subscribes to all blocks, at one node after another. roots: the root hashes of the blocks that came."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__("reader of blocks")
        self._addresses = list(addresses)
        self.roots: list[bytes] = []

    def work(self) -> None:
        with (
            connect(self._addresses, answer_s_max=ANSWER_S) as client,
            client.subscribe(0, reconnect=AGAIN) as blocks,
        ):
            for block in blocks:
                assert block.number == len(self.roots), "a block was passed over, or came twice"
                self.roots.append(block.root)
                # The source makes further blocks until all readers have ended.
                if self.is_over:
                    return


def check_chain(source: BlockSource, readers: Sequence[BlockReader], addresses: Sequence[str]) -> None:
    """Checks what every node says about the chain, and what readers got, against what was published."""
    last = source.acknowledged
    expected = [(block.number, block.root, block.items) for block in source.blocks]
    assert last == len(expected) - 1
    for reader in readers:
        assert reader.roots == [root for _, root, _ in expected[: len(reader.roots)]]
    for address in addresses:
        with connect(address, answer_s_max=ANSWER_S) as client:
            status = client.status(detail=True)
            assert (status.first_available, status.last_available, status.next_expected) == (0, last, last + 1)
            with client.subscribe(0, last) as blocks:
                assert [(block.number, block.root, tuple(block.items)) for block in blocks] == expected


def check_chain_rows(ask: Callable[[str], str], last: int) -> None:
    """Checks by psql that the stream of the chain has each block once, with consecutive parts, in the order of their
    numbers, and that nothing of unverified blocks is left."""
    of_chain = f"FROM messages JOIN streams ON id = stream_id WHERE convert_from(name, 'UTF8') = '{CHAIN_STREAM}'"
    indexes = ask(f"SELECT idx {of_chain} ORDER BY idx").split()
    assert list(map(int, indexes)) == list(range(len(indexes)))
    keys = ask(f"SELECT encode(key, 'hex') {of_chain} ORDER BY idx").split()
    first_of_each = [key for number, key in enumerate(keys) if number == 0 or keys[number - 1] != key]
    assert first_of_each == [key_of(number).hex() for number in range(last + 1)]
    assert ask("SELECT count(*) FROM block_staged").strip() == "0"
