"""Which parts a block node has: the one place that puts facility, plugins and services together, on one `ockam` node.

It starts what publishing needs, in the order in which one part needs another's knowledge; what reads blocks registers
itself beside it. Configuration files and the command line are the composition root's business.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog
import trio

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.chain import ChainState
from block_node.blocks.errors import BlockFormatError, Level
from block_node.blocks.hash_scheme import SHA384, RootCandidate
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.tss import TssVerifier
from block_node.blocks.verifier import Verifier
from block_node.events import NodeStopping
from block_node.facility import Facility, FacilityStatistics
from block_node.persist.newest_roots import find_roots
from block_node.persist.operations import ReadRoots
from block_node.persist.plugin import Persistence
from block_node.persist.store import BlockRetention, BlockStore, BlockStoreStatistics
from block_node.publish.limits import PublishLimits
from block_node.publish.service import SERVICE_ADDRESS, PublishService
from block_node.publish.statistics import PublishStatistics
from block_node.verification import Verification
from ockam.address import local
from ockam.message import Message
from ockam.node import Node
from ockam.worker import Worker
from storage.contract import StreamRecord
from storage.runner import Runner

PERSISTENCE_ADDRESS = local("block_persistence")
VERIFICATION_ADDRESS = local("block_verification")
EARLY_MESSAGES_MAX = 1_000
EARLY_MESSAGE_BYTES_MAX = 256
"""Of publishers that come while the node starts; who gets no answer asks again. No opening is larger."""

logger = structlog.get_logger(__name__)


class BlockNodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """first_block: with which the chain of an empty node begins, unless a publisher begins it lower.

    chain: the name of the stream that has the blocks.
    """

    first_block: int = 0
    chain: str = "blocks"
    retention: BlockRetention | None = None
    verifier: VerifierSettings | None = None
    publish: PublishLimits | None = None


class BlockNodeStatistics(msgspec.Struct, frozen=True):
    """publish: None until it is known what is stored."""

    facility: FacilityStatistics
    store: BlockStoreStatistics
    publish: PublishStatistics | None


class EarlyPublishers(Worker):
    """Keeps what publishers say before it is known what is stored; it is handed on then."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def handle(self, message: Message) -> None:
        if len(self.messages) < EARLY_MESSAGES_MAX and len(message.payload) <= EARLY_MESSAGE_BYTES_MAX:
            self.messages.append(message)


class BlockNode:
    """The block node's parts. `publishing` is None until it is known what is stored; `when_ready` tells."""

    def __init__(
        self,
        node: Node,
        storage: Runner,
        settings: BlockNodeSettings,
        *,
        now_us: Callable[[], int],
        new_id: Callable[[], str],
        now_s: Callable[[], float] = trio.current_time,
        address_books: AddressBooks | None = None,
        tss: TssVerifier | None = None,
        on_stream_changed: Callable[[StreamRecord], None] = lambda stream: None,
    ) -> None:
        """Raises SettingsError where the verifier's settings cannot work together."""
        self._node = node
        self._settings = settings
        self._new_id = new_id
        self._now_s = now_s
        self._when_ready: list[Callable[[], None]] = []
        # Which block may come first, the publish machine decides; any other than block 0 is taken on trust.
        self._start_chain = ChainState.starting_at(0 if settings.first_block == 0 else None)
        self.facility = Facility()
        self.store = BlockStore(
            storage,
            now_us=now_us,
            chain=settings.chain,
            retention=settings.retention,
            on_stream_changed=on_stream_changed,
        )
        self.verifier = Verifier(settings.verifier, address_books=address_books, tss=tss)
        self.publishing: PublishService | None = None
        self._early = EarlyPublishers()

    def start(self) -> None:
        """Serve, as soon as it is known what is stored."""
        self._node.register([local(SERVICE_ADDRESS)], lambda: self._early)
        self._node.register([PERSISTENCE_ADDRESS], lambda: Persistence(self.facility, self.store))
        self.store.when_open(self._opened)

    def stop(self) -> None:
        """End all streams, with a status; to be called once what was submitted is stored and acknowledged."""
        self.facility.publish(NodeStopping("the node stops; go on at another one, or here when it is back"))

    def when_ready(self, function: Callable[[], None]) -> None:
        """Call once when publishers are served; at once if they are."""
        if self.publishing is not None:
            function()
        else:
            self._when_ready.append(function)

    def statistics(self) -> BlockNodeStatistics:
        publish = self.publishing.statistics() if self.publishing is not None else None
        return BlockNodeStatistics(self.facility.statistics(), self.store.statistics(), publish)

    def durable_chain(self) -> ChainState:
        """Where the chain stands behind the last durable block."""
        newest = self.store.newest
        if newest is None or newest.number + 1 < self._settings.first_block:
            return self._start_chain
        # What was found out at the start is more than what was kept, for the same block.
        for chain in (self._start_chain, self._stored_chain()):
            if chain is not None and chain.next_number == newest.number + 1:
                return chain
        # The tree over all roots is not known; the link to the last block is.
        return ChainState(newest.number + 1, newest.root, None)

    def _stored_chain(self) -> ChainState | None:
        """Where the chain stood at the block with which that was last kept."""
        if not self.store.verifier_state:
            return None
        try:
            return ChainState.decode(self.store.verifier_state)
        except BlockFormatError as error:
            logger.error("block_chain_state_unknown", reason=str(error))
            return None

    def _opened(self) -> None:
        """It is known what is stored. Where it is not known which roots the newest block may have, or what the tree
        over all roots is, both are found out from the blocks, as far as these are there."""
        newest, available = self.store.newest, self.store.available
        goes_on = newest is not None and newest.number + 1 >= self._settings.first_block
        if newest is None or not goes_on:
            self._serve()
            return
        chain = self.durable_chain()
        is_hashed = bool(self.verifier.settings.levels & Level.MERKLE)
        scheme_unknown = is_hashed and not chain.scheme and not chain.open
        if available.first == 0 and len(available) == 1 and (chain.peaks is None or scheme_unknown):
            self.store.read_roots(newest.number, self._roots_read)
        elif chain.peaks is None and scheme_unknown:
            self._reopen(chain)
        else:
            self._serve()

    def _roots_read(self, operation: ReadRoots) -> None:
        if operation.error is None:
            sizes = {scheme.rules.size: scheme.rules for scheme in reversed(self.verifier.settings.hash_schemes)}
            before = ChainState.from_roots(operation.roots[:-1], sizes.get(len(operation.roots[-1]), SHA384))
            self._reopen(msgspec.structs.replace(before, claims=self.durable_chain().claims))
        else:
            logger.error("block_roots_not_read", reason=str(operation.error))
            self._serve()

    def _reopen(self, before: ChainState) -> None:
        """Find out which roots the newest block may have. before: the chain without it, as far as it is known."""
        newest = self.store.newest
        assert newest is not None, "asked for where there is a block"

        def found(roots: tuple[RootCandidate, ...], reason: str) -> None:
            if reason:
                logger.error("block_roots_unknown", block=newest.number, reason=reason)
            self._start_chain = before.reopened(newest.number, newest.root, roots)
            self._serve()

        find_roots(self.store, newest.number, self.verifier.settings, found)

    def _serve(self) -> None:
        self._node.register(
            [VERIFICATION_ADDRESS], lambda: Verification(self.facility, self.verifier, self.durable_chain)
        )
        self.publishing = PublishService(
            self._node,
            self.facility,
            last_block=self.store.ever_stored.last,
            is_stored=lambda block_number: block_number in self.store.ever_stored,
            first_block=self._settings.first_block,
            limits=self._settings.publish,
            new_id=self._new_id,
            now_s=self._now_s,
            store_refusal=lambda: self.store.refusal,
        )
        self._node.unregister(local(SERVICE_ADDRESS))
        self.publishing.register()
        self._node.send_run(self._early.messages)
        waiting, self._when_ready = self._when_ready, []
        for function in waiting:
            function()
