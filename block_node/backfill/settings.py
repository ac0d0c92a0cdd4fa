"""The settings of backfill. Their names are those of specs/backfill.md, "Configuration". It reads no file.

Further settings of the real node (facts/block_node.md §5.1) are included if they are useful here.
"""

from __future__ import annotations

import re

import msgspec

from block_node.persist.schema import NUMBER_MAX
from ockam.address import split_host_port

_SOURCE = re.compile(r"(?P<route>[^@]+?)(?:@(?P<priority>[0-9]{1,6}))?")


class BackfillSettingsError(ValueError):
    """Raised for a setting that cannot work. The text names the setting and its allowed values."""


class SourceSetting(msgspec.Struct, frozen=True):
    """A source of blocks: one other node. name: its hops as text. hops: each is `host:port`, and the last one has the
    blocks. priority: 0 is the best."""

    name: str
    hops: tuple[str, ...]
    priority: int = 0


class BackfillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of backfill for one chain. The first six are the specification's table, with its defaults.

    first_block_available: the first block that this node should have. last_block_to_store: the last block that it
    should have; -1 means no end. block_node_sources: see `parse_source`; without sources backfill is off.
    scan_interval_secs: the time between two scans for gaps; a scan is skipped while the last run continues.
    max_retries: failed attempts of a fetch, after which its blocks wait for the next scan. fetch_batch_size: the
    largest number of blocks in one request.

    initial_retry_delay_secs, max_backoff_secs: a source that failed is left alone for the first of these times. The
    time doubles with each further failure, up to the second. greedy: fetch blocks beyond the last stored block even
    while a publisher is connected; without a publisher they are always fetched. max_incoming_buffer_size: bytes of
    fetched blocks in memory, for each of the two fillers (history, live tail); a larger block cannot be fetched.
    concurrent_fetches: requests at a time of one filler. fetch_timeout_secs: the longest time for one request, and the
    longest silence of a source. processing_timeout_secs: the time in which a delivered block should be stored; after
    more than `max_retries` such times the block is given up.
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
        """Raises BackfillSettingsError if a setting cannot work."""
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
        """Parses the configured sources. Raises BackfillSettingsError if one is invalid or named twice."""
        found = [parse_source(text) for text in self.block_node_sources]
        names = [source.name for source in found]
        if len(set(names)) < len(names):
            raise BackfillSettingsError("blockNodeSources: a source is named twice")
        return found


def parse_source(text: str) -> SourceSetting:
    """Parses a source: `HOST:PORT`, optionally followed by `@1` for priority 1. `HOST:PORT>HOST:PORT` means that the
    second node is reached through the first.

    Raises BackfillSettingsError if the text has another form.
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
