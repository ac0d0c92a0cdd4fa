"""The block node: creates and connects the facility, the plugins and the services on one `ockam` node.

It starts the parts that publishers need; services for readers are registered separately. It reads no configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.chain import ChainState
from block_node.blocks.errors import BlockFormatError, Level
from block_node.blocks.merkle import SHA384, HashRules, RootCandidate
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import TssVerifier, Verifier
from block_node.events import BlockDamaged, NodeStopping
from block_node.facility import Facility, FacilityStatistics
from block_node.persist.plugin import Persistence
from block_node.persist.schema import BlockPlace
from block_node.persist.store import BlockRetention, BlockStoreStatistics, ChainStore
from block_node.persist.stored_items import find_roots
from block_node.publish.block_machine import PublishLimits
from block_node.publish.publish_machine import PublishStatistics
from block_node.publish.service import SERVICE_ADDRESS, PublishService
from block_node.verification import Verification
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right
from stream_storage.contract import Do, StreamRecord
from stream_storage.errors import StorageClosed
from stream_storage.runner import Runner

PERSISTENCE_ADDRESS = local("block_persistence")
VERIFICATION_ADDRESS = local("block_verification")
NODE_STOPS = "the node stops; go on at another one, or here when it is back"

logger = structlog.get_logger(__name__)


class BlockNodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a block node. None means no limit, or the defaults.

    first_block: the first block of an empty node; a publisher can begin with a lower block.
    chain: the name of the chain, from which the name of the stream with the blocks is derived."""

    first_block: int = 0
    chain: str = "blocks"
    retention: BlockRetention | None = None
    verifier: VerifierSettings | None = None
    publish: PublishLimits | None = None


class BlockNodeStatistics(msgspec.Struct, frozen=True):
    facility: FacilityStatistics
    store: BlockStoreStatistics
    publish: PublishStatistics | None


class EarlyPublishers(Worker):
    """Keeps the messages of publishers in its mailbox until the publishing service has started. As with every mailbox,
    connections that feed it stop reading while it is full."""

    def __init__(self, chain: str) -> None:
        self._chain = chain

    def started(self) -> None:
        self.context.pause()

    def demand(self, message: Message) -> Demand:
        return Demand(Right.BLOCK_PUBLISH, self._chain)


class BlockNode:
    """A block node with all its parts. publishing: None until the store has determined which blocks are stored."""

    def __init__(
        self,
        node: Node,
        storage: Runner,
        settings: BlockNodeSettings,
        *,
        now_us: Callable[[], int],
        new_id: Callable[[], str],
        address_books: AddressBooks | None = None,
        tss: TssVerifier | None = None,
        on_stream_changed: Callable[[StreamRecord], None] = lambda stream: None,
    ) -> None:
        """Raises SettingsError if the settings of the verifier contradict each other."""
        self._node = node
        self._settings = settings
        self._new_id = new_id
        self._when_ready: list[Callable[[], None]] = []
        # The publish machine decides which block may come first. A first block other than block 0 is accepted without a
        # check of its link to earlier blocks.
        self._start_chain = ChainState.starting_at(0 if settings.first_block == 0 else None)
        self.facility = Facility()
        self.store = ChainStore(
            storage,
            now_us=now_us,
            chain=settings.chain,
            retention=settings.retention,
            on_stream_changed=on_stream_changed,
        )
        self.store.on_damaged = lambda number: self.facility.publish(BlockDamaged(number))
        self.verifier = Verifier(settings.verifier, address_books=address_books, tss=tss)
        self.publishing: PublishService | None = None

    def start(self) -> None:
        """Starts the node. It serves publishers as soon as the store has determined which blocks are stored."""
        self._node.register([local(SERVICE_ADDRESS)], lambda: EarlyPublishers(self._settings.chain))
        self._node.register([PERSISTENCE_ADDRESS], lambda: Persistence(self.facility, self.store))
        self.store.when_open(self._opened)

    def stop(self, reason: str = NODE_STOPS) -> None:
        """Ends all streams. Call it when all received blocks are acknowledged: publishers send other blocks again."""
        self.facility.publish(NodeStopping(reason))

    def close(self) -> list[Message]:
        """Ends serving the chain, because another node serves it from now on. Call `stop` before. Submitted blocks are
        still stored. Returns the messages of publishers that were not served."""
        self.store.close()
        # The plugins end for good. Without this call, the end of a plugin would count as a failure of the node.
        self.facility.close()
        # The other node serves the messages that this node has not served.
        waiting = self._node.retire(local(SERVICE_ADDRESS))
        for address in (VERIFICATION_ADDRESS, PERSISTENCE_ADDRESS):
            self._node.unregister(address)
        return waiting

    @property
    def first_block(self) -> int:
        return self._settings.first_block

    def when_ready(self, function: Callable[[], None]) -> None:
        if self.publishing is not None:
            function()
        else:
            self._when_ready.append(function)

    def statistics(self) -> BlockNodeStatistics:
        publish = self.publishing.statistics() if self.publishing is not None else None
        return BlockNodeStatistics(self.facility.statistics(), self.store.statistics(), publish)

    def durable_chain(self) -> ChainState:
        newest = self.store.newest
        if newest is None or newest.number + 1 < self._settings.first_block:
            return self._start_chain
        # For the same block, prefer the state that was computed at the start: it knows more than the stored state.
        for chain in (self._start_chain, self._stored_chain()):
            if chain is not None and chain.next_number == newest.number + 1:
                return chain
        # The tree over all root hashes is unknown, but the root hash of the last block is known.
        return ChainState(newest.number + 1, newest.root, None)

    def _stored_chain(self) -> ChainState | None:
        if not self.store.verifier_state:
            return None
        try:
            return ChainState.decode(self.store.verifier_state)
        except BlockFormatError as error:
            logger.error("block_chain_state_unknown", reason=str(error))
            return None

    def _opened(self) -> None:
        """Continues the start. The stored state of the chain can lack the possible root hashes of the newest block, and
        the all-blocks tree, which is computed only if every block from 0 on is stored."""
        if self.store.is_closed:
            return
        newest, indexed = self.store.newest, self.store.available.copy()
        # The roots of damaged blocks are still known.
        for damaged in self.store.damaged:
            indexed.add(*damaged)
        if newest is None or newest.number + 1 < self._settings.first_block:
            self._serve()
            return
        # With all root hashes from block 0 on, the tree is built again, and the newest block is hashed once more.
        chain = self.durable_chain()
        is_hashed = bool(self.verifier.settings.levels & Level.MERKLE)
        scheme_unknown = is_hashed and not chain.scheme and not chain.open
        if indexed.first == 0 and len(indexed) == 1 and (chain.peaks is None or scheme_unknown):
            self.store.read_roots(newest.number, self._roots_read)
        elif chain.peaks is None and scheme_unknown:
            self._reopen(chain)
        else:
            self._serve()

    def _roots_read(self, operation: Do[list[bytes]]) -> None:
        if operation.error is None:
            roots, schemes = operation.result, self.verifier.settings.hash_schemes
            rules = next((each.rules for each in schemes if each.rules.size == len(roots[-1])), SHA384)
            before = ChainState.from_roots(roots[:-1], rules)
            self._reopen(msgspec.structs.replace(before, claims=self.durable_chain().claims), rules)
        else:
            logger.error("block_roots_not_read", reason=str(operation.error))
            self._serve()

    def _reopen(self, before: ChainState, rules: HashRules = SHA384) -> None:
        """Adds the possible root hashes of the newest block to a state, then serves publishers. rules: the hash rules
        of the tree."""
        newest = self.store.newest
        assert newest is not None, "asked for where there is a block"

        def found(roots: tuple[RootCandidate, ...], reason: str) -> None:
            if reason:
                logger.error("block_roots_unknown", block=newest.number, reason=reason)
            self._start_chain = before.reopened(newest.number, newest.root, roots, rules)
            self._serve()

        find_roots(self.store, newest.number, self.verifier.settings, found)

    def _find_stored_roots(self, number: int, on_found: Callable[[tuple[bytes, ...] | None], None]) -> None:
        """Calls `on_found` with the root hashes that the stored block `number` may have; with None if it cannot be
        read."""
        chain = self.verifier.chain
        opened = tuple(each.root for each in chain.open) if chain.next_number == number + 1 else ()

        def found(operation: Do[BlockPlace | None]) -> None:
            if opened:
                on_found(opened)
            elif operation.error is not None:
                on_found(None)
            else:
                place = operation.result
                on_found(() if place is None or not place.root else (place.root,))

        # If the node is stopping, it ends the streams of all publishers.
        with suppress(StorageClosed):
            self.store.find(number, found)

    def _serve(self) -> None:
        # The blocks were still being read when another node began to serve the chain.
        if self.store.is_closed:
            return
        # Verification begins after the durable chain, also after each crash of its worker.
        self._node.register(
            [VERIFICATION_ADDRESS], lambda: Verification(self.facility, self.verifier, self.durable_chain)
        )
        # The highest block that was stored counts, also if its bytes are damaged now.
        last, newest = self.store.ever_stored.last, self.store.newest
        if newest is not None:
            last = max(newest.number, -1 if last is None else last)
        self.publishing = PublishService(
            self._node,
            self.facility,
            self.store,
            last_block=last,
            first_block=self._settings.first_block,
            limits=self._settings.publish,
            new_id=self._new_id,
            find_roots=self._find_stored_roots,
        )
        # Now the service answers the publishers whose messages were kept.
        early = self._node.retire(local(SERVICE_ADDRESS))
        self.publishing.register()
        self._node.send_run(early)
        waiting, self._when_ready = self._when_ready, []
        for function in waiting:
            function()
