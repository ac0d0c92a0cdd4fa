"""The settings of a node, each with its type, its default and its explanation, and the variables of the environment
that have other meanings. This module reads no file and no value of a variable.

`tools/reference.py` makes `docs/settings.md` from this file. The text below a setting explains that setting, and a
comment `# Group "Name": explanation` begins a group of settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
import platformdirs

from index_service.limits import LEASE_LIMITS
from ockam.identity.tls import HANDSHAKE_TIMEOUT_S, HANDSHAKES_MAX
from ockam.quotas.memory import MEMORY_BYTES_MAX
from stream_service.names import near_names

Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)]
"""A number of seconds above 0. The maximum is 366 days: longer times are mistakes, and some clocks cannot
represent them."""

Delay: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=366 * 86_400)]
LeaseTime: TypeAlias = Annotated[float, msgspec.Meta(ge=0.1, le=86_400)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
MemoryBytes: TypeAlias = Annotated[int, msgspec.Meta(ge=1024 * 1024, le=2**62)]
"""A memory size of at least 1 MiB. A smaller memory would not have room for one answer."""
Amount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

ENVIRONMENT_PREFIX = "STREAM_NODE_"
APPLICATION = "stream-node"
LOG_LEVELS = ("debug", "info", "warning", "error")


class ConfigError(Exception):
    """The error of invalid settings. Each mistake names the setting, the place where it was set, and the allowed
    values."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of `stream-node serve`. Times are in seconds, sizes in bytes.

    In a file, a variable or a flag, a time or a size may have a unit, such as "7d" or "64MiB".
    `stream_node.node.config_sources` converts them.
    """

    # Group "Storage": where the data is, and when pushes are refused because the disk is nearly full.
    data_dir: str = platformdirs.user_data_dir(APPLICATION)
    """The folder of the database. Only one node at a time may use it."""
    database: str | None = None
    """The URL of a PostgreSQL database, postgresql://USER@HOST:PORT/DATABASE, which holds the streams in place of an
    SQLite file in `data_dir`. With several HOST:PORT, separated by commas, the node finds the one that takes writes."""
    database_unsafe: bool = False
    """Whether the node also starts if the PostgreSQL server can lose what it has confirmed (`fsync`, `full_page_writes`
    or `synchronous_commit` is off, or a table of the node is UNLOGGED)."""
    database_wait_s: Seconds = 30.0
    """For how long a push waits for a PostgreSQL server that takes writes, before it fails and is not stored."""
    database_call_s: Seconds = 10.0
    """If one call of the PostgreSQL server takes longer than this, the node ends the connection and makes a new one."""
    database_standby_reads: bool = False
    """Whether pulls are served from a standby of the PostgreSQL server while no server takes writes. A standby is used
    only if it has all messages that were confirmed."""
    cluster: str | None = None
    """The name of this node in its cluster: at most 64 letters, digits, `-`, `_` and `.`. The nodes of a cluster have
    the same `database`, and share its streams. See [scale.md](scale.md#cluster)."""
    cluster_address: str | None = None
    """The HOST:PORT at which the other nodes of the cluster reach this one. Without this setting, it is the address at
    which the node listens. With several `workers`, the first is reached at the next port after this one, and so on."""
    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """The number of processes that share the streams of this node, so that it uses several cores. It cannot change
    later, except with `database`. See [scale.md](scale.md#workers)."""
    migrate: bool = True
    """Whether the node brings a database of an earlier version up to date at its start. It first makes a backup of an
    SQLite database in the data directory; back up a PostgreSQL database yourself. If this setting is false, the node
    refuses to start with a database of an earlier version."""
    free_disk_bytes_min: Amount = 64 * 1024 * 1024
    """The node refuses pushes that would leave less free disk space than this, so that deleting still works. With 0,
    the node may fill the disk. With `database`, the node does not see the disk, and refuses nothing for it."""

    # Group "Network": where the node listens, and when it closes a connection.
    listen: str = "127.0.0.1:4000"
    """The HOST:PORT at which the node listens for TCP connections. Port 0 picks a free port."""
    allow_forward: tuple[str, ...] = ()
    """The HOST:PORT of other nodes that clients may reach through this node."""
    forwarding: bool = False
    """Whether clients can register at this node. Others then send messages for a client to its address on this node,
    and streams can be read and written for it. See [own-workers.md](own-workers.md#forwarding-and-stored-routes)."""
    mirror_address: str | None = None
    """The HOST:PORT at which other nodes reach this node. The former source of a promoted mirror follows it there.
    Without this setting, it is the first address at which the node listens."""
    mirror_passes_pushes: bool = False
    """Whether a mirror passes the pushes that it gets on to its source, in the name of this node, and the answers back.
    Without this setting, a mirror refuses pushes. See [scale.md](scale.md#publishers-that-cannot-be-told)."""
    idle_timeout_s: Seconds | None = None
    """The node closes a connection on which nothing arrives for this long. Without this setting, silent connections
    stay open."""
    frame_timeout_s: Seconds = 30.0
    """The node closes a connection if a frame is not complete this long after its first byte."""
    send_timeout_s: Seconds = 30.0
    """The node closes a connection if its peer does not accept 1 MiB of answers within this time."""
    drain_timeout_s: Delay = 10.0
    """When the node stops, it waits at most this long for its peers to accept their answers."""

    # Group "TLS": encrypted connections, and how clients prove who they are. See [security.md](security.md).
    tls_certificate: str | None = None
    """A PEM file with the certificate of this node, followed by those of its intermediate authorities. With it, the
    node accepts only TLS 1.3."""
    tls_certificate_key: str | None = None
    """A PEM file with the private key of `tls_certificate`, without a password."""
    tls_client_ca: str | None = None
    """A PEM file with the authorities that sign the certificates of clients. With it, clients prove who they are by a
    certificate."""
    tls_client_required: bool = True
    """Whether the node refuses clients without a certificate if `tls_client_ca` is set. If not, such clients are
    anonymous."""
    tls_revoked: str | None = None
    """A text file with the SHA-256 fingerprint of one revoked client certificate in each line."""
    tls_handshake_timeout_s: Seconds = HANDSHAKE_TIMEOUT_S
    """The node closes a connection if its TLS handshake is not complete within this time."""
    tls_handshakes_max: Count = HANDSHAKES_MAX
    """The maximum number of TLS handshakes at one time. If another one begins, the node closes the oldest one whose
    client sends nothing."""
    tls_forward_ca: str | None = None
    """A PEM file with the authorities of other nodes. With it, this node connects to other nodes only with TLS. For its
    own requests it shows `tls_certificate`; for messages that it forwards it shows none."""
    tls_forward_plaintext: tuple[str, ...] = ()
    """The HOST:PORT of other nodes to which this node connects without TLS in spite of `tls_forward_ca`."""

    # Group "Access": who may do what. See [security.md](security.md).
    access_rules: str | None = None
    """The TOML file with the rules that say who may do what. Without it, everybody who reaches the node may do
    everything. The node reads the file again when it has changed, and at SIGHUP."""
    forward_tokens: tuple[str, ...] = ()
    """The tokens by which this node proves its name to other nodes, each as HOST:PORT=FILE. They are for its own
    requests, such as those of backfill; messages that it forwards prove nothing. A file is read for each connection."""
    audit_log: str | None = None
    """The file for refusals and administrative acts, one JSON object on each line. With rules, the default is
    audit.jsonl in the data directory. The node opens it again at SIGHUP."""
    insecure: bool = False
    """Whether the node may listen beyond this machine without TLS or without rules."""

    # Group "HTTP": whether and how the node answers over HTTP. See [http.md](http.md).
    http: tuple[str, ...] = ()
    """The HOST:PORT at which the node listens for HTTP. Several are allowed; port 0 picks a free port. Without this
    setting, the node has no HTTP. TLS, client certificates, tokens and rules are those of the node."""
    http_hosts: tuple[str, ...] = ()
    """The names by which clients call the node over HTTP, such as node.example.org. An IP address is always allowed,
    and localhost at a loopback address. With this setting, every other name is refused; without it, only at a loopback
    address."""
    http_origins: tuple[str, ...] = ()
    """The origins of other web sites whose pages may push, read and administer streams over HTTP (CORS), such as
    https://shop.example.org. Such a page has the rights of the token that it sends. Without a token, it has the rights
    of anonymous clients."""
    http_connections_max: Count = 1_000
    """The maximum number of open HTTP connections. One host or certificate can have a quarter of them. For a further
    one, the node closes the connection that has waited for a whole request for longest."""
    http_body_bytes_max: Count = 16 * 1024 * 1024
    """The maximum size of the body of an HTTP request, also after its gzip is decoded."""
    http_header_bytes_max: Annotated[int, msgspec.Meta(ge=1024, le=1024 * 1024)] = 16 * 1024
    """The maximum size of the first line and the headers of an HTTP request together."""
    http_idle_timeout_s: Seconds = 60.0
    """The node closes an HTTP connection if the headers of its next request are not complete within this time."""
    http_body_timeout_s: Seconds = 30.0
    """The node closes an HTTP connection if the next part of a request's body does not arrive within this time."""
    http_clients_max: Count = 1_000
    """The maximum number of identities, each with its host, that use streams over HTTP at one time. Each of them has
    one connection inside the node."""

    metrics_names_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    """The number of streams, and of consumers, that have metrics of their own: the streams to which most was written,
    and the consumers that are farthest behind. The others are summed under the name _others."""

    consumer_stuck_after: tuple[str, ...] = ("export-*=1d",)
    """The time without progress after which a consumer is called stuck, although messages wait: each as CONSUMER=TIME,
    *@STREAM=TIME or CONSUMER@STREAM=TIME, in which a star stands for any characters. With the word `never` as the time,
    a consumer is never called stuck. The first entry that matches counts. For a consumer without an entry, the node
    learns how long messages usually wait for it, and allows three times that; until then, 15 minutes."""

    export_folders: tuple[str, ...] = ()
    """The folders of exports whose runs and ranges the dashboard shows, each as `stream-node export run` got it. The
    node only reads their histories; the file of a history can be named, too."""

    # Group "gRPC": whether and how the node answers peers of block nodes over gRPC. See [block-node.md](block-node.md).
    grpc: tuple[str, ...] = ()
    """The HOST:PORT at which the node listens for gRPC; Hiero block nodes use port 40840. Several are allowed; port 0
    picks a free port. HOST:PORT/publish serves publishers alone: the names are publish, subscribe, access and status,
    several with + between them. gRPC needs `block_node`. TLS, client certificates, tokens and rules are those of the
    node."""
    grpc_connections_max: Count = 1_000
    """The maximum number of open gRPC connections. One host or certificate can have a quarter of them."""
    grpc_streams_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100
    """The maximum number of open calls of one gRPC connection."""
    grpc_message_bytes_max: MemoryBytes = 131_072_000
    """The maximum size of one message of a publisher, also after it is decompressed. The size of a block is bounded by
    `block_bytes_max` alone: a block can come in several messages."""
    grpc_unfinished_bytes_max: MemoryBytes = 512 * 1024 * 1024
    """The maximum number of received bytes of all unfinished gRPC messages. One host or identity may hold as much as is
    still free; above that, only its oldest message is read on. All windows of publishers together have the same
    maximum."""
    grpc_header_bytes_max: Annotated[int, msgspec.Meta(ge=1024, le=1024 * 1024)] = 8 * 1024
    """The maximum size of the headers of one call."""
    grpc_resets_max: Count = 50
    """The node closes a gRPC connection whose peer resets more calls than this within 10 seconds."""
    grpc_pings_max: Count = 200
    """The node closes a gRPC connection whose peer sends more PINGs than this in one second."""
    grpc_idle_timeout_s: Seconds = 7_200.0
    """The node closes a gRPC connection that has had no open call for this long."""
    grpc_duplicate_window: Annotated[int, msgspec.Meta(ge=1, le=10)] = 5
    """A publisher that offers a block which the node has is asked to skip it if the block is at most this many numbers
    below the last one. The stream of a publisher that offers an older block ends."""
    grpc_compression: bool = False
    """Whether large messages to peers that accept it are compressed, with zstd or gzip."""

    # Group "Traces": a push as one trace of OpenTelemetry. See [operating.md](operating.md#traces).
    traces: str | None = None
    """The URL of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318. The node sends it spans of the
    pushes whose client traces them. This needs the extra `otel`. Without this setting, the node makes no spans."""

    # Group "Own workers": programs of yours that run on the node. See [own-workers.md](own-workers.md).
    worker: tuple[str, ...] = ()
    """The workers of your own that the node runs, each as MODULE:CLASS@ADDRESS, or as NAME@ADDRESS, where NAME is an
    entry point of the group stream_node.workers. ?OPTION=VALUE&… behind it are arguments of the
    constructor. A settings file can list workers by address in the table [workers]; its key `processes` then stands for
    the setting `workers`."""

    # Group "Streams": how long messages are kept, and for how long a consumer keeps its partitions.
    retention_age_s: Amount | None = None
    """The node keeps messages for this long. This setting and the next two apply to streams that have no retention of
    their own."""
    retention_messages: Amount | None = None
    """The node keeps this number of the newest messages of each partition."""
    retention_bytes: Amount | None = None
    """The node keeps the newest messages of each partition up to this total size of their data."""
    retention_interval_s: Seconds = 5.0
    """The interval between two deletions of messages beyond the retention. Each deletion also returns disk space to
    the system."""
    clock_trust_s: Delay = 86_400.0
    """After a jump of the machine's clock, the node deletes no message for its age until the new time has lasted this
    long. With 0, the node trusts every jump at once."""
    lease_ttl_s: LeaseTime = LEASE_LIMITS.ttl_s
    """A consumer that shares a stream keeps its partitions for this long after its last message to the node. If the
    node sees the end of its connection, other consumers get them at once. See
    [consumer-groups.md](consumer-groups.md)."""

    # Group "Limits": the limits for all clients of the node together. With several `workers`, each has them for itself.
    connections_max: Count = 10_000
    """The maximum number of open connections. If another one opens, the node closes the oldest connection that has
    never sent a message. If there is none, it closes the new one. One identity can have only
    `identity_connections_max` of them."""
    peer_memory_bytes_max: MemoryBytes = MEMORY_BYTES_MAX
    """The maximum memory for all peers together: for answers not yet sent, waiting pulls, remembered routes, and what
    HTTP requests hold. If it is exceeded, the node first limits the peer that uses most. In a memory limit (cgroup)
    below 1 GiB for each worker, this is at most an eighth of a worker's share of the limit."""
    streams_max: Count = 100_000
    """The maximum number of partitions of all streams together."""
    partitions_max: Count = 4_096
    """The maximum number of partitions of one stream. Consumers share a stream of at most 4096 partitions."""
    pull_bytes_max: Count = 1024 * 1024
    """The maximum size of the data in one answer to a pull. An answer always has at least one message,
    however large."""

    # Group "Limits per identity": what one client may use of the node. See [security.md](security.md#limits).
    identity_limits_loopback: bool = False
    """Whether the limits of identities also hold for anonymous clients on this machine. If not, such a client has only
    the limits that the file of the rules names for it."""
    identity_connections_max: Count = 1_000
    """The maximum number of open connections of one identity. The first request of a further connection is refused. All
    clients without a certificate or token at one address, for example behind a proxy, are one identity."""
    identity_requests_per_second: Count | None = None
    """The maximum number of requests of one identity in a second. The node reads more slowly from an identity that
    sends more. Without this setting, there is no limit, and identities take turns while the node is busy."""
    identity_bytes_per_second: Count | None = None
    """The maximum number of bytes that one identity may send and receive in a second. The node reads more slowly from
    an identity that exceeds it. Without this setting, there is no limit."""
    identity_in_flight_bytes_max: MemoryBytes = 64 * 1024 * 1024
    """The maximum memory that the node uses for one identity: for its requests that wait, for answers not yet sent,
    waiting pulls, remembered routes, and what HTTP requests hold. While it is exceeded, the node reads nothing from the
    identity, and makes no answers for it over HTTP. In a memory limit (cgroup) below 1 GiB for each worker, this is at
    most 1/32 of a worker's share of the limit, and the limits of identities also hold for clients on this machine."""
    identity_streams_per_hour: Count = 10_000
    """The maximum number of partitions that one identity may create in an hour. Further ones are refused."""
    identity_pulls_parked_max: Count = 10_000
    """The maximum number of pulls of one identity that wait for a message. A further pull that would wait is
    refused."""
    identity_channels_max: Count = 1_000
    """The maximum number of open secure channels of one identity. A channel counts for its own identity and for that of
    its connection. A further channel is closed at once."""
    identity_block_publish_sessions_max: Count = 100
    """The maximum number of connected publishers of blocks of one identity. Further ones are refused."""
    identity_block_subscribe_sessions_max: Count = 100
    """The maximum number of block subscriptions of one identity. Further ones are refused."""

    # Group "Secure channel": who may open encrypted channels to this node. See [security.md](security.md).
    secure_channel: bool = True
    """Whether the node has a listener for secure channels. It answers nobody until an identity is trusted."""
    secure_channel_trusted: tuple[str, ...] = ()
    """The identifiers (I and 64 hexadecimal digits) of identities that may open channels, besides those of
    `stream-node trust add`."""
    secure_channel_trust_anyone: bool = False
    """Whether every identity may open channels, also one that nobody has named as trusted. What it may do is then up to
    `access_rules`."""
    secure_channel_channels_max: Count = 10_000
    """The maximum number of open channels."""
    secure_channel_peer_channels_max: Count = 64
    """The maximum number of open channels of one connection."""
    secure_channel_handshakes_max: Count = 1_000
    """The maximum number of unfinished handshakes. If it is exceeded, the node drops the oldest one."""
    secure_channel_peer_handshakes_max: Count = 8
    """The maximum number of unfinished handshakes of one connection. If it is exceeded, the node drops the oldest
    one."""
    secure_channel_handshakes_per_second: Count = 50
    """The maximum number of handshakes that one certificate, or one address, may begin in a second. The node drops the
    others."""
    secure_channel_handshake_s_max: Seconds = 10.0
    """The longest time from the first to the last message of a handshake."""
    secure_channel_idle_s_max: Seconds = 3_600.0
    """The node ends a channel without messages after this time."""

    # Group "Logging": log lines on stderr, as text at a terminal, otherwise as JSON. `NO_COLOR` turns colours off.
    log_level: str = "info"
    """The lowest level of the lines that are logged: `debug`, `info`, `warning` or `error`."""

    # Group "Blocks": the block node inside this node: its chain, its checks, and which blocks it keeps.
    block_node: bool = True
    """Whether this node accepts, verifies and serves blocks."""
    block_chain: str = "blocks"
    """The name of the chain. Its blocks are in the stream "block_node.NAME"."""
    block_first: Amount = 0
    """The number of the first block that an empty node accepts."""
    block_levels: tuple[str, ...] = ("structure", "merkle", "chain")
    """The checks of each block: `structure`, `merkle`, `chain`, `record_proof`, `state_proof`, `tss`.
    See [blocks.md](blocks.md)."""
    block_address_book: str | None = None
    """A file with the keys for the check `record_proof`."""
    block_known_roots: tuple[str, ...] = ()
    """Blocks whose root hash you know from another source, each as NUMBER:HEX. A block with this number must have this
    root hash."""
    block_retention_blocks: Count | None = None
    """The node keeps this number of blocks. It deletes the lowest numbers first."""
    block_retention_bytes: Count | None = None
    """The node keeps blocks up to this total size. It deletes the lowest numbers first."""

    block_scan_bytes: Amount = 64 * 1024
    """How many bytes of stored blocks the node reads again in each second, round and round, to find damaged ones before
    a reader does: by default 5.7 GB a day. 0: it reads none."""

    # Group "Block limits": the limits on the size of blocks and on the numbers of publishers and subscribers.
    block_bytes_max: Count = 1024 * 1024 * 1024
    """The maximum size of a block."""
    block_items_max: Count = 5_000_000
    """The maximum number of items in a block."""
    block_publish_sessions_max: Count = 1_000
    """The maximum number of connected publishers."""
    block_publish_queued_bytes_max: Count = 32 * 1024 * 1024
    """The maximum size of received block data that waits for its verification. If it is exceeded, the node reads only
    from the publisher of the lowest block."""
    block_publish_idle_s_max: Seconds = 7_200.0
    """The node ends the session of a publisher that sends nothing for this long."""
    block_subscribe_sessions_max: Count = 1_000
    """The maximum number of subscriptions at one time."""
    block_subscribe_slow_s_max: Seconds = 30.0
    """The node ends the session of a subscriber that confirms nothing for this long while its window is full."""
    block_subscribe_missing_s_max: Seconds = 30.0
    """The longest time that a subscription waits for a missing block if a higher block is stored. Then the
    subscription ends."""
    block_subscribe_duration_s_max: Seconds | None = None
    """The node ends a subscription after this time. Without this setting, a subscription lasts as long as
    the connection."""

    # Group "Backfill": how missing blocks are fetched from other nodes. See [backfill.md](backfill.md).
    backfill_block_node_sources: tuple[str, ...] = ()
    """The nodes from which missing blocks are fetched: `HOST:PORT`, `HOST:PORT@1` with priority 1 (0 is tried first),
    or `HOST:PORT>HOST:PORT` for the second node through the first; these speak Ockam routing. `grpc://HOST:PORT` and
    `grpcs://HOST:PORT` are block nodes that speak gRPC. A file `….json`, in the format of a Hiero block node, lists
    more such block nodes. Without sources, backfill is off."""
    backfill_first_block_available: Amount = 0
    """The number of the lowest block that this node should have."""
    backfill_last_block_to_store: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1
    """The number of the highest block that this node should have. -1 means no limit."""
    backfill_greedy: bool = False
    """Whether the node fetches blocks above its newest block while a publisher is connected. Without a publisher it
    always fetches them."""
    backfill_scan_interval_secs: Seconds = 60.0
    """The interval between two searches for missing blocks."""
    backfill_concurrent_fetches: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """The maximum number of requests at one time. It applies separately to old blocks and to the newest blocks."""
    backfill_fetch_batch_size: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 100
    """The maximum number of blocks in one request."""
    backfill_max_incoming_buffer_size: Count = 104_857_600
    """The maximum size of fetched blocks in memory. It applies separately to old blocks and to the newest blocks. A
    larger block cannot be fetched."""

    # Group "For one specification, or for tests": settings for a specification, a real peer or a test.
    service_addresses: tuple[str, ...] = ("stream_service", "stream", "stream_kafka")
    """The worker addresses of the stream service. Our clients use the first; other Ockam programs also use
    the others."""
    index_addresses: tuple[str, ...] = ("stream_index_service", "stream_index", "stream_kafka_index")
    """The worker addresses of the index service. Our clients use the first; other Ockam programs also use
    the others."""
    secure_channel_addresses: tuple[str, ...] = ("secure_channel", "secure_channel_listener", "api")
    """The worker addresses of the listener for secure channels. Our clients use the first; other Ockam programs also
    use the others."""
    error_delay_s: Delay = 1.0
    """The node delays the answer to a failed push or create, and to a refused token, by this time. So a peer that
    repeats a failed request at once does not keep the node busy."""
    header_timeout_s: Seconds | None = None
    """This setting has no effect. The node accepts it so that old files stay valid; `idle_timeout_s` closes
    silent connections."""
    block_tss_verifier: str | None = None
    """A Python function, as MODULE:NAME. It returns your verifier of threshold signatures, for the check `tss`."""
    block_accept_unchecked_proofs: bool = False
    """Whether a block passes although `block_levels` checks none of its proofs. At least one proof must be of a known
    kind."""
    block_link_record_blocks: bool = True
    """Whether a block must continue the chain even if its only proof is a record-file proof (from record files, the
    format before blocks). With any other proof, a block must always continue the chain."""
    block_signatures_min: Count = 1
    """The number of nodes whose valid signatures a record-file proof needs."""
    block_skip_unknown_signers: bool = False
    """Whether signatures by nodes that are not in the address book are ignored. If not, a block with such a
    signature fails."""
    block_publish_block_s_max: Seconds = 30.0
    """The longest time from the header of a block to its end; a large block gets more. After this time, the node
    requests the block from other publishers."""
    block_publish_processing_s_max: Seconds = 60.0
    """The longest time for the verification of a block, and also the longest time for storing it. After this time, the
    node disconnects all publishers with an error."""
    block_publish_stall_blocks_max: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 3
    """When a block is complete, the node ends the sessions of publishers whose block is still incomplete and has a
    number lower by more than this limit."""
    block_publish_ahead_blocks_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 256
    """The maximum number of blocks that are received at one time. If it is reached, the node reads only from the
    publisher of the lowest block."""
    block_publish_resend_s: Seconds = 5.0
    """The interval at which the node requests a missing block again."""
    block_subscribe_ahead_blocks_max: Amount = 4_000
    """A subscription may begin at most this many blocks above the newest block."""
    backfill_max_retries: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 3
    """How often a failed fetch is repeated. After that, the blocks wait for the next search."""
    backfill_initial_retry_delay_secs: Seconds = 5.0
    """The pause after the first failure of a source. It doubles with each further failure."""
    backfill_max_backoff_secs: Seconds = 300.0
    """The longest pause after a failure of a source."""
    backfill_fetch_timeout_secs: Seconds = 60.0
    """The longest time for one request, and the longest time without a message from a source."""
    backfill_processing_timeout_secs: Seconds = 10.0
    """The time within which a fetched block should be stored. A longer time is logged. After several such periods, the
    block waits for the next search."""

    @property
    def grpc_addresses(self) -> tuple[str, ...]:
        """The addresses of `grpc` without the names of their services."""
        return tuple(address.partition("/")[0] for address in self.grpc)


def without_effect(config: Config) -> dict[str, str]:
    """Returns the settings that were given but have no effect, each with a text that says what to use instead."""
    found = {}
    if config.header_timeout_s is not None:
        reason = "silent connections stay open now; idle_timeout_s closes them, connections_max bounds them"
        found["header_timeout_s"] = reason
    if config.audit_log is not None and config.access_rules is None:
        found["audit_log"] = "without access_rules nothing is refused, so there is no audit log"
    return found


def shown(value: Any) -> str:
    """Returns the value of a setting as text."""
    if value is None or value == ():
        return "none"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def mistakes_in(
    setting: str, values: Iterable[str], check: Callable[[str], object], error_type: type[Exception]
) -> list[str]:
    """Returns a mistake for each value of a setting that the check refuses with this error."""
    mistakes = []
    for value in values:
        try:
            check(value)
        except error_type as error:
            mistakes.append(f"{setting}: {error}")
    return mistakes


FIELDS = {field.name: field for field in msgspec.structs.fields(Config)}
"""The settings by name, in the order of `Config`."""

OTHERS = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in (
        *("ADDRESS", "FRAMING", "INDEX_SERVICE", "SERVICE", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME"),
        *("CHANNEL_LISTENER", "IDENTITY", "PEER", "TOKEN", "TOKEN_FILE"),
        *("CACHE_DIR", "CARDINAL", "CI_RUN", "COMPILE", "FAILPOINT", "SEED", "SYNC_DELAY_MS"),
    )
)
"""The variables that the command line, the demo, the tests and CI read. All other known ones are settings of a node."""
OF_CONTAINERS = re.compile(
    ENVIRONMENT_PREFIX
    + r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?|NAME|ENV_\w+)"
)
"""Matches the variables that Kubernetes and container links set for a service with the name stream-node."""


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Returns an error text for each variable that nothing reads."""
    known = {ENVIRONMENT_PREFIX + name.upper() for name in FIELDS} | OTHERS
    texts = []
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not OF_CONTAINERS.fullmatch(name):
            near = near_names(name, known)
            told = f"there is {near}" if near else "nothing reads it"
            texts.append(f"unknown variable {name} in the environment; {told}")
    return texts
