"""The settings of a node: each with its type, its default and its explanation. It reads no file and no environment.

`docs/settings.md` is made from this file by `tools/reference.py`: the text below a setting explains that setting, and a
comment `# Group "Name": explanation` begins a group.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
import platformdirs

from index_service.limits import LEASE_LIMITS
from ockam.memory import MEMORY_BYTES_MAX
from stream_node.environment import PREFIX, unknown_variables

Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)]
"""A time above 0. At most a year: nobody means more, and clocks and databases end somewhere."""

Delay: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=366 * 86_400)]
LeaseTime: TypeAlias = Annotated[float, msgspec.Meta(ge=0.1, le=86_400)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
MemoryBytes: TypeAlias = Annotated[int, msgspec.Meta(ge=1024 * 1024, le=2**62)]
"""At least a MiB: less would hold no answer."""
Amount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

ENVIRONMENT_PREFIX = PREFIX
APPLICATION = "stream-node"
LOG_LEVELS = ("debug", "info", "warning", "error")


class ConfigError(Exception):
    """Settings that cannot be used.

    mistakes: one text for each; it names the setting, where it was set, and what it may be.
    """

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Config: the settings of `stream-node serve`. Times are in seconds, sizes in bytes.

    Where settings are given, times and sizes may have units: "7d", "64MiB". `stream_node.config_sources` reads them.
    """

    # Group "Storage": where the data is, and when a push is refused because the disk is nearly full.
    data_dir: str = platformdirs.user_data_dir(APPLICATION)
    """The folder that holds the database. One node at a time may use it."""
    free_disk_bytes_min: Amount = 64 * 1024 * 1024
    """Refuse pushes that would leave less than this free on the disk, so that deleting still works. 0 lets the disk
    fill up."""

    # Group "Network": where the node listens, and when it closes a connection.
    listen: str = "127.0.0.1:4000"
    """The HOST:PORT at which the node listens for TCP connections. Port 0 picks a free port."""
    allow_forward: tuple[str, ...] = ()
    """The HOST:PORT of other nodes that clients may reach through this node."""
    idle_timeout_s: Seconds | None = None
    """Close a connection on which nothing arrives for this long. Without it, silent connections stay open."""
    frame_timeout_s: Seconds = 30.0
    """Close a connection whose frame is not complete this long after its first byte."""
    send_timeout_s: Seconds = 30.0
    """Close a connection whose peer does not take 1 MiB of answers within this time."""
    drain_timeout_s: Delay = 10.0
    """A node that stops waits this long for its peers to take their answers."""

    # Group "Streams": what streams keep, and for how long a consumer holds its partitions.
    retention_age_s: Amount | None = None
    """Keep messages for this long. This and the next two settings apply to streams that have no retention of their
    own."""
    retention_messages: Amount | None = None
    """Keep the newest N messages of each partition."""
    retention_bytes: Amount | None = None
    """Keep the newest messages of each partition whose data is this large together."""
    retention_interval_s: Seconds = 5.0
    """The time between two rounds that delete what need not be kept and give its space back to the disk."""
    clock_trust_s: Delay = 86_400.0
    """After the machine's clock has jumped, no message is deleted for its age until the new time has lasted this long.
    0 believes every jump at once."""
    lease_ttl_s: LeaseTime = LEASE_LIMITS.ttl_s
    """A consumer that shares a stream keeps its partitions for this long after the node last heard from it."""

    # Group "Limits": what clients may use of the node together.
    connections_max: Count = 10_000
    """Open connections. For one more, the node closes the connection that has been silent longest without ever sending
    a message. If there is none, it closes the new one."""
    peer_memory_bytes_max: MemoryBytes = MEMORY_BYTES_MAX
    """Memory that all peers together may make the node hold: unread answers, waiting pulls and remembered routes.
    Beyond it, the peer that holds most yields first."""
    streams_max: Count = 100_000
    """Partitions of all streams together."""
    partitions_max: Count = 4_096
    """Partitions of one stream."""
    pull_bytes_max: Count = 1024 * 1024
    """Data in one answer to a pull. An answer has at least one message, however large."""

    # Group "Logging": lines on stderr, in JSON or at a terminal in words (`NO_COLOR` leaves colours out).
    log_level: str = "info"
    """The least important level that is logged: `debug`, `info`, `warning` or `error`."""

    # Group "Blocks": the block node inside this node: which chain it keeps, how strictly it checks, and what it keeps.
    block_node: bool = True
    """Whether this node takes, verifies and serves blocks."""
    block_chain: str = "blocks"
    """The name of the chain. Its blocks are in the stream "block_node.NAME"."""
    block_first: Amount = 0
    """The number of the first block that an empty node takes."""
    block_levels: tuple[str, ...] = ("structure", "merkle", "chain")
    """What is checked of each block: `structure`, `merkle`, `chain`, `record_proof`, `state_proof`, `tss`. See
    [blocks.md](blocks.md)."""
    block_address_book: str | None = None
    """A file with the keys that the level `record_proof` needs."""
    block_known_roots: tuple[str, ...] = ()
    """Blocks whose roots you know from elsewhere, each as NUMBER:HEX. Such a block must have that root."""
    block_retention_blocks: Count | None = None
    """Keep this many blocks. The lowest numbers are deleted first."""
    block_retention_bytes: Count | None = None
    """Keep blocks of this size together. The lowest numbers are deleted first."""

    # Group "Block limits": how large blocks may be, and how many publishers and subscribers there may be.
    block_bytes_max: Count = 1024 * 1024 * 1024
    """Size of one block."""
    block_items_max: Count = 5_000_000
    """Items in one block."""
    block_publish_sessions_max: Count = 1_000
    """Publishers that are connected at one time."""
    block_publish_queued_bytes_max: Count = 32 * 1024 * 1024
    """Bytes of received blocks that wait to be verified. Beyond it, the node reads only the publisher of the lowest
    block."""
    block_publish_idle_s_max: Seconds = 7_200.0
    """End the session of a publisher that sends nothing for this long."""
    block_subscribe_sessions_max: Count = 1_000
    """Subscriptions at one time."""
    block_subscribe_slow_s_max: Seconds = 30.0
    """End the session of a subscriber that takes nothing for this long."""
    block_subscribe_missing_s_max: Seconds = 30.0
    """A subscription waits this long for a block that is missing below blocks that are there. Then it ends."""
    block_subscribe_duration_s_max: Seconds | None = None
    """End a subscription after this time. Without it, subscriptions last as long as the connection."""

    # Group "Backfill": fetching missing blocks from other nodes. See [backfill.md](backfill.md).
    backfill_block_node_sources: tuple[str, ...] = ()
    """The nodes that missing blocks are fetched from: `HOST:PORT`, `HOST:PORT@1` with priority 1 (0 is tried first),
    or `HOST:PORT>HOST:PORT` through the first node to the second. Without sources there is no backfill."""
    backfill_first_block_available: Amount = 0
    """The lowest block that this node should have."""
    backfill_last_block_to_store: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1
    """The highest block that this node should have. -1 means that there is no end."""
    backfill_greedy: bool = False
    """Whether to fetch blocks above the newest one here while a publisher is connected. Without a publisher they are
    always fetched."""
    backfill_scan_interval_secs: Seconds = 60.0
    """The time between two searches for missing blocks."""
    backfill_concurrent_fetches: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Requests under way at one time, for history and for the newest blocks each."""
    backfill_fetch_batch_size: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 100
    """Blocks in one request, at most."""
    backfill_max_incoming_buffer_size: Count = 104_857_600
    """Fetched blocks in memory, for history and for the newest blocks each. A larger block cannot be fetched."""

    # Group "For one specification, or for tests": a specification, a real peer or a test needs these; few nodes do.
    service_addresses: tuple[str, ...] = ("stream_service", "stream", "stream_kafka")
    """The worker addresses of the stream service. The first is the one our clients use; the others are names that real
    peers use."""
    index_addresses: tuple[str, ...] = ("stream_index_service", "stream_index", "stream_kafka_index")
    """The worker addresses of the index service, in the same order."""
    error_delay_s: Delay = 1.0
    """The answer to a push or create that failed is held back for this long, so that a peer that repeats it at once
    does not keep the node busy."""
    header_timeout_s: Seconds | None = None
    """Has no effect. It is accepted so that old files keep working; `idle_timeout_s` closes silent connections."""
    block_tss_verifier: str | None = None
    """MODULE:NAME of a Python function that makes the external verifier which the level `tss` needs."""
    block_accept_unchecked_proofs: bool = False
    """Whether a block passes when all of its proofs are of known kinds that no level in `block_levels` checks."""
    block_link_record_blocks: bool = True
    """Whether a block that has only record-file proofs must continue the chain."""
    block_signatures_min: Count = 1
    """Valid signatures that a record-file proof needs."""
    block_skip_unknown_signers: bool = False
    """Whether signatures by nodes that are not in the address book are ignored. If not, they fail the block."""
    block_publish_block_s_max: Seconds = 30.0
    """The time from the header of a block to its end; a large block gets more. When it is over, other publishers are
    asked for the block."""
    block_publish_processing_s_max: Seconds = 60.0
    """The time that the node itself has to verify a block, and again to store it. When it is over, all publishers are
    disconnected with an error."""
    block_publish_stall_blocks_max: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 3
    """A block that is still being sent is taken from its publisher when a block this far above it is finished."""
    block_publish_ahead_blocks_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 256
    """Blocks that are being received. Beyond it, the node reads only the publisher of the lowest block."""
    block_publish_resend_s: Seconds = 5.0
    """The time after which the node asks again for a missing block."""
    block_subscribe_ahead_blocks_max: Amount = 4_000
    """How many blocks above the newest one a subscription may begin."""
    backfill_max_retries: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 3
    """How often a fetch is tried again. Then its blocks wait for the next search."""
    backfill_initial_retry_delay_secs: Seconds = 5.0
    """A source that failed is left alone for this long, doubled with each further failure."""
    backfill_max_backoff_secs: Seconds = 300.0
    """The longest time for which a source that failed is left alone."""
    backfill_fetch_timeout_secs: Seconds = 60.0
    """The time for one request, and for any sign of life from a source."""
    backfill_processing_timeout_secs: Seconds = 10.0
    """The time in which a fetched block should be stored. A longer time is logged, and after several of them the block
    is given up."""


def without_effect(config: Config) -> dict[str, str]:
    """The settings that were given and do nothing, each with the advice what to use instead."""
    if config.header_timeout_s is None:
        return {}
    reason = "silent connections stay open now; idle_timeout_s closes them, connections_max bounds them"
    return {"header_timeout_s": reason}


def check_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError for a variable `STREAM_NODE_…` that nothing reads: a misspelt one would have no effect."""
    mistakes = unknown_variables(environment, FIELDS)
    if mistakes:
        raise ConfigError(*mistakes)


FIELDS = {field.name: field for field in msgspec.structs.fields(Config)}
"""The settings by name, in the order of `Config`."""
