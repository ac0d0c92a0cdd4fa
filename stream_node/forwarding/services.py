"""Starts the forwarding services of a node, and the forwarding addresses whose messages its streams store."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from ockam.actors.address import local
from ockam.actors.forwarders import FORWARDED, NOT_FORWARDED, Forwarders
from ockam.actors.node import Node
from stream_node.forwarding.bidirectional import ADDRESSES, Bidirectional
from stream_node.forwarding.storing import STORED, StoringForwarder, find_registration
from stream_node.node.config import Config


class ForwardingStatistics(msgspec.Struct, frozen=True):
    """The statistics of the forwarding addresses. Counters begin at the start of the node."""

    addresses: int
    away: int  # the addresses whose client is not connected
    waiting: int  # the stored messages that their clients have not got
    forwarded: int  # the messages sent on to a client, each time
    stored: int  # the messages stored for a client
    refused: int  # the dropped messages: nobody was connected, too much waited, or the message did not fit


class ForwardingServices:
    """The forwarding addresses of a node, and its bidirectional streams. own_workers: see `Bidirectional`."""

    def __init__(self, node: Node, config: Config, own_workers: Collection[str] = ()) -> None:
        service, index_service = local(config.service_addresses[0]), local(config.index_addresses[0])
        self._node = node
        self._forwarders = Forwarders(node, lambda each: StoringForwarder(node, each, self._forwarders, service))
        self._bidirectional = Bidirectional(node, service, index_service, own_workers)

    def start(self, stream_names: Iterable[str]) -> None:
        """Starts the services. stream_names: those of all stored streams. A stream with messages for an absent client
        also has the client's forwarding address. Raises AddressInUse."""
        for name in stream_names:
            registration = find_registration(name)
            if registration is not None and registration.address not in self._forwarders.all:
                self._forwarders.add(registration)
        self._forwarders.start()
        self._node.register(list(map(local, ADDRESSES)), lambda: self._bidirectional)

    def statistics(self) -> ForwardingStatistics:
        workers = [self._forwarders.find_worker(each) for each in self._forwarders.all.values()]
        return ForwardingStatistics(
            addresses=len(workers),
            away=sum(each is None or not each.is_connected for each in workers),
            waiting=sum(each.waiting for each in workers if isinstance(each, StoringForwarder)),
            forwarded=self._node.counted(FORWARDED),
            stored=self._node.counted(STORED),
            refused=self._node.statistics().dropped.get(NOT_FORWARDED, 0),
        )
