"""Cardinal Streams: blocks as messages over partitioned topics, and back. Pure machines, a transport interface, and a
transport over a file."""

from cardinal_streams.chain_events import ChainUpdate, Dropped, DropReason, NeedsReorg, Revert, Start
from cardinal_streams.chain_order_machine import ChainOrder
from cardinal_streams.consumer_events import (
    BadMessage,
    Checkpoint,
    CloseReorgChannel,
    Feeds,
    OpenReorgChannel,
    ReorgRefused,
)
from cardinal_streams.consumer_machine import Consumer
from cardinal_streams.errors import CardinalError, MessageError, PayloadError
from cardinal_streams.file_transport import FileTransport, Recorder, replay
from cardinal_streams.payload import CompleteBatch, Payload
from cardinal_streams.prefixes import Tracked
from cardinal_streams.producer import Producer
from cardinal_streams.reassembly_events import Completed, Evicted, Refused
from cardinal_streams.reassembly_machine import Reassembler
from cardinal_streams.reorg_channel import ReorgChannel
from cardinal_streams.transport import Delivery, Receiver, Sender, Transport

__all__ = [
    "BadMessage",
    "CardinalError",
    "ChainOrder",
    "ChainUpdate",
    "Checkpoint",
    "CloseReorgChannel",
    "CompleteBatch",
    "Completed",
    "Consumer",
    "Delivery",
    "DropReason",
    "Dropped",
    "Evicted",
    "Feeds",
    "FileTransport",
    "MessageError",
    "NeedsReorg",
    "OpenReorgChannel",
    "Payload",
    "PayloadError",
    "Producer",
    "Reassembler",
    "Receiver",
    "Recorder",
    "Refused",
    "ReorgChannel",
    "ReorgRefused",
    "Revert",
    "Sender",
    "Start",
    "Tracked",
    "Transport",
    "replay",
]
