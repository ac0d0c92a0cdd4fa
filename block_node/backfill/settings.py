"""How backfill is configured. The names are those of specs/backfill.md, "Configuration"; it reads no file.

What the real node has beyond that table (facts/block_node.md §5.1) is here where it helps.
"""

from __future__ import annotations

import re

import msgspec

from block_node.persist.schema import NUMBER_MAX
from ockam.address import split_host_port

_SOURCE = re.compile(r"(?P<route>[^@]+?)(?:@(?P<priority>[0-9]{1,6}))?")


class BackfillSettingsError(ValueError):
    """A setting that cannot work; the text names it and says what it may be."""


class SourceSetting(msgspec.Struct, frozen=True):
    """One other node. name: its hops as text. hops: `host:port`, the last one has the blocks. priority: 0 is best."""

    name: str
    hops: tuple[str, ...]
    priority: int = 0


class BackfillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one chain. The first six are the specification's table, with its defaults.

    first_block_available: the first block that this node is to have. last_block_to_store: the last one; -1 is no end.
    block_node_sources: see `parse_source`; none switches backfill off. scan_interval_secs: between two looks for gaps;
    one is passed over while the last run goes on. max_retries: of a fetch, after which its blocks wait for the next
    scan. fetch_batch_size: blocks in one request at most.

    initial_retry_delay_secs, max_backoff_secs: a source that failed is left alone for this long, doubled with each
    further failure, up to the second. greedy: fetch what is beyond the last block that is here also while a publisher
    is connected; without a publisher that is always done. max_incoming_buffer_size: bytes of fetched blocks in memory,
    for each of the two workers (history, live tail); no larger block can be fetched. concurrent_fetches: of one
    worker. fetch_timeout_secs: for one request, and without a sign of life of a source.
    processing_timeout_secs: until a block that was handed on is stored; after `max_retries` such times it is given up.
    """

    first_block_available: int = 0
    last_block_to_store: int = -1
    block_node_sources: tuple[str, ...] = ()
    scan_interval_secs: float = 60.0
    max_retries: int = 3
    fetch_batch_size: int = 100

    initial_retry_delay_secs: float = 5.0
    max_backoff_secs: float = 300.0
    greedy: bool = False
    max_incoming_buffer_size: int = 104_857_600
    concurrent_fetches: int = 4
    fetch_timeout_secs: float = 60.0
    processing_timeout_secs: float = 10.0

    def check(self) -> None:
        """Raises BackfillSettingsError."""
        if not 0 <= self.first_block_available <= NUMBER_MAX:
            raise BackfillSettingsError("firstBlockAvailable: must be a block number")
        if not -1 <= self.last_block_to_store <= NUMBER_MAX:
            raise BackfillSettingsError("lastBlockToStore: must be a block number, or -1 for no end")
        if 0 <= self.last_block_to_store < self.first_block_available:
            raise BackfillSettingsError("lastBlockToStore: is below firstBlockAvailable")
        for name in ("scan_interval_secs", "initial_retry_delay_secs", "fetch_timeout_secs", "processing_timeout_secs"):
            if getattr(self, name) <= 0:
                raise BackfillSettingsError(f"{name}: must be above 0")
        for name in ("fetch_batch_size", "max_incoming_buffer_size", "concurrent_fetches"):
            if getattr(self, name) < 1:
                raise BackfillSettingsError(f"{name}: must be at least 1")
        if self.max_retries < 0:
            raise BackfillSettingsError("maxRetries: must be at least 0")
        if self.max_backoff_secs < self.initial_retry_delay_secs:
            raise BackfillSettingsError("max_backoff_secs: is below initial_retry_delay_secs")
        self.sources()

    def sources(self) -> list[SourceSetting]:
        """Raises BackfillSettingsError."""
        found = [parse_source(text) for text in self.block_node_sources]
        names = [source.name for source in found]
        if len(set(names)) < len(names):
            raise BackfillSettingsError("blockNodeSources: a source is named twice")
        return found


def parse_source(text: str) -> SourceSetting:
    """`HOST:PORT`, with `@1` behind it for priority 1; `HOST:PORT>HOST:PORT` is reached through the first.

    Raises BackfillSettingsError.
    """
    match = _SOURCE.fullmatch(text.strip())
    if match is None:
        raise BackfillSettingsError(f"blockNodeSources: {text!r} is not HOST:PORT, or HOST:PORT@PRIORITY")
    hops = tuple(hop.strip() for hop in match["route"].split(">"))
    for hop in hops:
        try:
            split_host_port(hop)
        except ValueError as error:
            raise BackfillSettingsError(f"blockNodeSources: {error}") from error
    return SourceSetting(">".join(hops), hops, int(match["priority"] or 0))
