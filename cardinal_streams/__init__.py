"""Cardinal Streams sends the blocks of a chain over partitioned topics.

A producer turns each block into messages, and consumers rebuild the blocks from these messages. Programs begin with
`publish` and `consume`. The messages travel over a transport: the streams of a node, a recorded file, or Kafka.
docs/cardinal.md explains the rest."""

from cardinal_streams.application import Application, Prefix
from cardinal_streams.consume.checkpoints import CheckpointStore, FileCheckpoints, NodeCheckpoints
from cardinal_streams.consume.consuming import Arrival, Update, consume, consume_unordered
from cardinal_streams.errors import CardinalError, MessageError, PayloadError
from cardinal_streams.evm import evm
from cardinal_streams.machines.chain_order_machine import ChainOrder
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.events import (
    BadMessage,
    ChainUpdate,
    Checkpoint,
    CloseReorgChannel,
    Completed,
    Dropped,
    DropReason,
    Evicted,
    Feeds,
    Gap,
    LeftOut,
    NeedsReorg,
    OpenReorgChannel,
    PrefixUnmet,
    Refused,
    ReorgRefused,
    ReorgStalled,
    Revert,
    Stalled,
    Start,
)
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.payload import CompleteBatch, Payload
from cardinal_streams.prefixes import Tracked
from cardinal_streams.produce.producer import Producer, ReorgChannel
from cardinal_streams.produce.publishing import ChainBlock as Block
from cardinal_streams.produce.publishing import ChainPublisher, SubBatch, publish
from cardinal_streams.transports.file_transport import FileTransport, Recorder, replay
from cardinal_streams.transports.kafka_transport import KafkaTransport
from cardinal_streams.transports.stream_transport import StreamTransport
from cardinal_streams.transports.transport import Delivery, Receiver, Sender, Transport

__all__ = [
    "Application",
    "Arrival",
    "BadMessage",
    "Block",
    "CardinalError",
    "ChainConsumer",
    "ChainOrder",
    "ChainPublisher",
    "ChainUpdate",
    "Checkpoint",
    "CheckpointStore",
    "CloseReorgChannel",
    "CompleteBatch",
    "Completed",
    "Delivery",
    "DropReason",
    "Dropped",
    "Evicted",
    "Feeds",
    "FileCheckpoints",
    "FileTransport",
    "Gap",
    "KafkaTransport",
    "LeftOut",
    "MessageError",
    "NeedsReorg",
    "NodeCheckpoints",
    "OpenReorgChannel",
    "Payload",
    "PayloadError",
    "Prefix",
    "PrefixUnmet",
    "Producer",
    "Reassembler",
    "Receiver",
    "Recorder",
    "Refused",
    "ReorgChannel",
    "ReorgRefused",
    "ReorgStalled",
    "Revert",
    "Sender",
    "Stalled",
    "Start",
    "StreamTransport",
    "SubBatch",
    "Tracked",
    "Transport",
    "Update",
    "consume",
    "consume_unordered",
    "evm",
    "publish",
    "replay",
]
