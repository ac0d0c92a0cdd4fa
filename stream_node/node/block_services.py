"""Runs the block node inside a stream node, with the stream node's configuration, storage and streams."""

from __future__ import annotations

import importlib
from collections import Counter
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from block_node.backfill.settings import BackfillSettings, BackfillSettingsError
from block_node.backfill.state import BackfillState, BackfillStatistics
from block_node.backfill.worker import BackfillService
from block_node.blocks.address_book import AddressBook, AddressBooks
from block_node.blocks.errors import AddressBookError, Level, SettingsError
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import TssVerifier
from block_node.grpc.calls.statistics import GrpcCallStatistics
from block_node.moved import MOVED
from block_node.node import BlockNode, BlockNodeSettings, BlockNodeStatistics
from block_node.persist.mark import STREAM_PREFIX
from block_node.persist.plugin import BlockScan
from block_node.persist.store import BlockRetention
from block_node.publish.block_machine import PublishLimits
from block_node.read.feed import SubscribeLimits
from block_node.read.services import ReadServices, ReadStatistics
from block_node.read.subscribe import SubscribeStatistics
from ockam.actors.address import local, split_host_port
from ockam.actors.message import Message
from ockam.identity.tls import Tls, new_client_context
from ockam.identity.tls_layer import TlsLayer
from stream_node.node.config import Config, ConfigError
from stream_node.version import __version__
from stream_service.names import refusal_of_name
from stream_service.workers.directory import StreamDirectory

if TYPE_CHECKING:
    from block_node.grpc.calls.services import GrpcServices

SCAN_ADDRESS = local("block_scan")
LEVELS = {level.name.lower(): level for level in Level if level.name is not None}


class BlockTrust(NamedTuple):
    """The keys that check the signatures of blocks, read once: a file that is replaced later changes nothing."""

    book: AddressBook | None  # the keys of the nodes; None: their signatures are not checked
    tss: TssVerifier | None  # checks threshold signatures; None: they are not checked


def read_trust(config: Config) -> BlockTrust:
    """Checks the settings of the block node, and returns the keys that they name. Raises ConfigError."""
    book = None
    if config.block_address_book is not None:
        try:
            book = AddressBook.load(Path(config.block_address_book))
        except AddressBookError as error:
            raise ConfigError(f"block_address_book: {error}") from error
    elif "record_proof" in config.block_levels:
        raise ConfigError("block_levels: record_proof needs block_address_book, the keys to check signatures with")
    tss = _tss_verifier(config)
    settings = _settings(config)
    # Settings that are valid by themselves can still contradict each other, and nothing has checked those of a program.
    if book is not None and config.block_signatures_min > len(book.node_ids):
        reason = f"{config.block_signatures_min} are wanted, and the address book has {len(book.node_ids)} nodes"
        raise ConfigError(f"block_signatures_min: {reason}; no block would pass")
    refusal = refusal_of_name(STREAM_PREFIX + settings.chain)
    if refusal is not None or not settings.chain:
        raise ConfigError(f"block_chain: {settings.chain!r} cannot name a stream")
    try:
        (settings.verifier or VerifierSettings()).check()
    except SettingsError as error:
        raise ConfigError(f"block_{error}") from error
    try:
        msgspec.convert(_given(config, "backfill_"), BackfillSettings).check()
    except (BackfillSettingsError, msgspec.ValidationError) as error:
        raise ConfigError(f"backfill: {error}") from error
    return BlockTrust(book, tss)


class BlockServicesStatistics(msgspec.Struct, frozen=True):
    """The statistics of the block services. readers: also those over gRPC. grpc: None without gRPC."""

    node: BlockNodeStatistics
    readers: ReadStatistics
    backfill: BackfillStatistics
    grpc: GrpcCallStatistics | None


class BlockServices:
    """The services for the chain of one node: publishing, subscriptions, access to blocks, status and backfill."""

    def __init__(self, directory: StreamDirectory, trust: BlockTrust, config: Config) -> None:
        """Creates the services, which `start` then starts. config: its settings are valid, see `read_trust`."""
        node, storage, new_id = directory.node, directory.storage, directory.new_id
        book, plan_limits = trust.book, SubscribeLimits(**_given(config, "block_subscribe_"))
        # Publishing and the store; the other services read from it.
        self._blocks = BlockNode(
            node,
            storage,
            _settings(config),
            now_us=directory.now_us,
            new_id=new_id,
            address_books=None if book is None else AddressBooks.always(book),
            tss=trust.tss,
            on_stream_changed=directory.note_changed,
        )
        self._read = ReadServices(
            node,
            self._blocks,
            version=__version__,
            new_id=new_id,
            limits=plan_limits,
            address_book=None if book is None else book.serialize(),
        )
        # Backfill fetches missing blocks from other nodes into the same store.
        backfill = BackfillState(
            node,
            self._blocks,
            storage,
            BackfillSettings(**_given(config, "backfill_")),
            new_id=new_id,
            make_tls=partial(_source_tls, config),
        )
        self._backfill = BackfillService(node, self._blocks, backfill)
        self._node = node
        self._scan_bytes_per_s = config.block_scan_bytes
        self.grpc: GrpcServices | None = None
        if config.grpc:
            # Only a node with gRPC loads h2.
            from block_node.grpc.calls.services import GrpcServices
            from stream_node.doors.grpc.listener import grpc_limits

            limits = grpc_limits(config)
            self.grpc = GrpcServices(node, self._blocks, self._read, limits, plan_limits=plan_limits)

    def start(self) -> None:
        self._blocks.start()
        if self._scan_bytes_per_s:
            self._node.register([SCAN_ADDRESS], lambda: BlockScan(self._blocks.store, self._scan_bytes_per_s))
        self._read.start()
        self._backfill.start()
        if self.grpc is not None:
            self.grpc.start()

    def stop(self) -> None:
        """Ends all sessions of publishers and subscribers. Each is sent a status."""
        self._blocks.stop()

    def hand_over(self) -> list[Message]:
        """Ends all sessions and services, because another node of the cluster serves the chain from now on.
        Submitted operations are still stored. Returns the messages that were not served, in order for each service."""
        self._blocks.stop(MOVED)
        if self.grpc is not None:
            self.grpc.close()
        self._node.unregister(SCAN_ADDRESS)
        return [*self._backfill.close(), *self._read.close(), *self._blocks.close()]

    def statistics(self) -> BlockServicesStatistics:
        readers, grpc = self._read.statistics(), None if self.grpc is None else self.grpc.statistics()
        if grpc is not None:
            # Subscribers are counted together, by whatever protocol they came.
            over = grpc.subscribe
            both = SubscribeStatistics(
                readers.subscribe.sessions + over.sessions,
                readers.subscribe.begun + over.begun,
                dict(Counter(readers.subscribe.ended) + Counter(over.ended)),
            )
            readers = msgspec.structs.replace(readers, subscribe=both)
        return BlockServicesStatistics(self._blocks.statistics(), readers, self._backfill.state.statistics(), grpc)

    def change_retention(self, config: Config) -> None:
        self._blocks.store.retention = _retention(config)
        self._blocks.store.apply_retention()

    def refuse_blocks(self, reason: str | None) -> None:
        """Makes the node refuse all blocks for this reason. None makes it accept blocks again."""
        self._blocks.store.refusal = reason


def _settings(config: Config) -> BlockNodeSettings:
    for name in config.block_levels:
        if name not in LEVELS:
            raise ConfigError(f"block_levels: {name!r} is not one of {', '.join(LEVELS)}")
    verifier = VerifierSettings(
        levels=reduce(or_, map(LEVELS.__getitem__, config.block_levels), Level(0)),
        accept_unchecked_proofs=config.block_accept_unchecked_proofs,
        known_roots=_known_roots(config.block_known_roots),
        link_record_blocks=config.block_link_record_blocks,
        signatures_min=config.block_signatures_min,
        skip_unknown_signers=config.block_skip_unknown_signers,
        block_bytes_max=config.block_bytes_max,
        items_max=config.block_items_max,
        item_bytes_max=min(config.block_bytes_max, VerifierSettings().item_bytes_max),
    )
    backfill_first = config.backfill_first_block_available if config.backfill_block_node_sources else 0
    return BlockNodeSettings(
        first_block=max(config.block_first, backfill_first),
        chain=config.block_chain,
        retention=_retention(config),
        verifier=verifier,
        publish=PublishLimits(**_given(config, "block_publish_")),
    )


def _retention(config: Config) -> BlockRetention:
    return BlockRetention(blocks=config.block_retention_blocks, size_bytes=config.block_retention_bytes)


def _given(config: Config, prefix: str) -> dict[str, Any]:
    """Returns the settings whose names begin with the prefix, without it."""
    names = (name for name in Config.__struct_fields__ if name.startswith(prefix))
    return {name.removeprefix(prefix): getattr(config, name) for name in names}


def _source_tls(config: Config, address: str) -> TlsLayer:
    """Returns the TLS of a connection to a source of backfill. The authorities: `tls_forward_ca`, or the machine's."""
    context = new_client_context(Tls(ca=config.tls_forward_ca))
    context.set_alpn_protocols(["h2"])
    return TlsLayer(context, server_side=False, server_name=split_host_port(address)[0])


def _tss_verifier(config: Config) -> TssVerifier | None:
    """Returns the verifier of the setting `block_tss_verifier`; None without the setting. Raises ConfigError."""
    text = config.block_tss_verifier
    if text is None:
        if "tss" in config.block_levels:
            raise ConfigError("block_levels: tss needs block_tss_verifier, MODULE:NAME of what makes a verifier")
        return None
    module, _, name = text.partition(":")
    try:
        made: TssVerifier = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise ConfigError(f"block_tss_verifier: {text!r} does not make a verifier: {error!r}") from error
    if not callable(getattr(made, "verify_tss", None)):
        raise ConfigError(f"block_tss_verifier: what {text!r} makes has no verify_tss")
    return made


def _known_roots(texts: tuple[str, ...]) -> dict[int, bytes]:
    roots: dict[int, bytes] = {}
    for text in texts:
        number, _, root = text.partition(":")
        try:
            if not (number.isdecimal() and root):
                raise ValueError(text)
            roots[int(number)] = bytes.fromhex(root)
        except ValueError:
            raise ConfigError(f"block_known_roots: {text!r} is not NUMBER:HEX, a block and its root") from None
    return roots
