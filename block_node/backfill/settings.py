"""The settings of backfill, with the names from specs/backfill.md, "Configuration", and further ones of the reference
block node (facts/block_node.md §5.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from ockam.actors.address import split_host_port

PENDING_SHARE = 8

_SOURCE = re.compile(r"(?:(?P<scheme>grpcs?)://)?(?P<route>[^@]+?)(?:@(?P<priority>[0-9]{1,6}))?")


class BackfillSettingsError(ValueError):
    """BackfillSettingsError: the error of an invalid setting. The text names the setting and its allowed values."""


class SourceSetting(msgspec.Struct, frozen=True):
    """Another node as a source of blocks. hops: the nodes on the way, each as `host:port`, the source node last. name:
    the scheme and the hops as text. priority: 0 is the best.

    scheme: `grpc`, or `grpcs` with TLS: the source speaks the block services over gRPC. Empty: it is an Ockam node.
    status: the `host:port` at which the source reports which blocks it has, if that is not the address of its blocks.
    """

    name: str
    hops: tuple[str, ...]
    priority: int = 0
    scheme: str = ""
    status: str = ""

    @property
    def protocol(self) -> str:
        return {"": "Ockam routing", "grpc": "gRPC"}.get(self.scheme, "gRPC over TLS")


class _SourceNode(msgspec.Struct, rename="camel"):
    """A node in a file of sources of the reference block node, with the names that protobuf's JSON writes."""

    address: str
    port: int
    priority: int = 0
    scheme: str = ""
    status_port: int = 0
    subscribe_port: int = 0


def describe_sources(texts: tuple[str, ...]) -> dict[str, str]:
    """Returns the protocol of each source in words, by its name. Raises BackfillSettingsError."""
    return {source.name: source.protocol for text in texts for source in _sources_of(text)}


class BackfillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of backfill for one chain. The first six and their defaults come from the specification.

    first_block_available, last_block_to_store: the blocks that this node should have. -1 means no end.
    block_node_sources: the source nodes, see `parse_source`, and files of them, see `read_sources`. Without any,
    backfill is off.
    scan_interval_secs: the time between two searches for missing blocks.
    max_retries: how often a block is requested again before it is left to the next search.
    initial_retry_delay_secs, max_backoff_secs: the first and the longest pause after a failure of a source node. The
    pause doubles with each failure.
    greedy: whether blocks above the last stored one are fetched also while a publisher is connected.
    max_incoming_buffer_size: the largest total size of fetched blocks in memory. It applies to history and to the
    newest blocks separately, as `concurrent_fetches` does. A block that does not fit cannot be fetched.
    processing_timeout_secs: while a fetched block is not stored, a warning is logged each time that this time has
    passed. After `max_retries` + 1 warnings the block is left to the next search.
    pending_blocks: the most blocks that were passed on but are not stored. Operators cannot set it.
    """

    first_block_available: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    last_block_to_store: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1
    block_node_sources: tuple[str, ...] = ()
    scan_interval_secs: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    max_retries: Annotated[int, msgspec.Meta(ge=0)] = 3
    fetch_batch_size: Annotated[int, msgspec.Meta(ge=1)] = 100

    initial_retry_delay_secs: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    max_backoff_secs: float = 300.0
    greedy: bool = False
    max_incoming_buffer_size: Annotated[int, msgspec.Meta(ge=1)] = 104_857_600
    concurrent_fetches: Annotated[int, msgspec.Meta(ge=1)] = 4
    fetch_timeout_secs: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    processing_timeout_secs: Annotated[float, msgspec.Meta(gt=0)] = 10.0

    pending_blocks: int = 64

    @property
    def pending_bytes(self) -> int:
        """The part of the buffer for blocks that are being verified or stored."""
        return max(1, self.max_incoming_buffer_size // PENDING_SHARE)

    @property
    def alone_bytes(self) -> int:
        """The largest size of a request that runs alone: the rest of the buffer."""
        return max(1, self.max_incoming_buffer_size - self.pending_bytes)

    @property
    def chunk_bytes(self) -> int:
        return max(1, self.alone_bytes // self.concurrent_fetches)

    def check(self) -> None:
        """Raises BackfillSettingsError if a source is invalid or two settings contradict each other."""
        if 0 <= self.last_block_to_store < self.first_block_available:
            raise BackfillSettingsError("lastBlockToStore: is below firstBlockAvailable")
        if self.max_backoff_secs < self.initial_retry_delay_secs:
            raise BackfillSettingsError("max_backoff_secs: is below initial_retry_delay_secs")
        self.sources()

    def sources(self) -> list[SourceSetting]:
        found = [source for text in self.block_node_sources for source in _sources_of(text)]
        if len({source.name for source in found}) < len(found):
            raise BackfillSettingsError("blockNodeSources: a source is named twice")
        return found


def _sources_of(text: str) -> Iterator[SourceSetting]:
    if text.endswith(".json"):
        yield from read_sources(Path(text))
    else:
        yield parse_source(text)


def read_sources(path: Path) -> list[SourceSetting]:
    """Reads a file of sources of the reference block node (facts/block_node.md §5.1). All these sources speak gRPC.
    Names of members can be in snake case or in camel case. Other settings of a source are ignored. Raises
    BackfillSettingsError."""
    try:
        nodes = msgspec.json.decode(path.read_bytes())["nodes"]
        given = [{re.sub("_([a-z])", lambda at: at[1].upper(), name): each[name] for name in each} for each in nodes]
        found = msgspec.convert(given, list[_SourceNode])
        return [_source_over_grpc(each) for each in found]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BackfillSettingsError(f"blockNodeSources: {path} is no file of sources: {error!r}") from error


def _source_over_grpc(node: _SourceNode) -> SourceSetting:
    """Returns the source over gRPC that an entry of a file describes. Raises ValueError."""
    scheme = {"": "grpc", "http": "grpc", "https": "grpcs"}.get(node.scheme)
    if scheme is None:
        raise ValueError(f"{node.scheme!r} is no scheme; there are http and https")
    host = f"[{node.address}]" if ":" in node.address else node.address
    main, status, blocks = (f"{host}:{port or node.port}" for port in (0, node.status_port, node.subscribe_port))
    for address in (main, status, blocks):
        split_host_port(address)
    return SourceSetting(f"{scheme}://{main}", (blocks,), node.priority, scheme, "" if status == blocks else status)


def parse_source(text: str) -> SourceSetting:
    """Parses a source: `HOST:PORT`, or `HOST:PORT@1` for priority 1. `HOST:PORT>HOST:PORT` reaches the second node
    through the first. `grpc://HOST:PORT` and `grpcs://HOST:PORT` are block nodes that speak gRPC, the second with TLS.
    Raises BackfillSettingsError."""
    match = _SOURCE.fullmatch(text.strip())
    if match is None:
        raise BackfillSettingsError(f"blockNodeSources: {text!r} is not HOST:PORT, or HOST:PORT@PRIORITY")
    hops = tuple(hop.strip() for hop in match["route"].split(">"))
    for hop in hops:
        try:
            split_host_port(hop)
        except ValueError as error:
            raise BackfillSettingsError(f"blockNodeSources: {error}") from error
    scheme = match["scheme"] or ""
    if scheme and len(hops) > 1:
        raise BackfillSettingsError(f"blockNodeSources: {text!r} goes over another node, which gRPC does not")
    name = (f"{scheme}://" if scheme else "") + ">".join(hops)
    return SourceSetting(name, hops, int(match["priority"] or 0), scheme)
