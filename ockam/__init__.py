"""Workers that exchange routed messages, and the TCP transport that carries the messages between nodes.

    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        node.register([local("echo")], Echo)
        transport = TcpTransport(node, nursery)
        await transport.listen("127.0.0.1", 4000)

- A `Worker` has an `Address` and handles `Message`s. A `Node` routes messages to workers and runs them.
- A `Protocol` encodes and decodes payloads.
- `TcpTransport` connects nodes. `FrameReader` and `FrameWriter` encode and decode frames, without sockets.

This package does not depend on streams or SQL. Each public name is imported on its first use, so a client
that needs only `Protocol` does not have to install trio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ockam.actors.address import (
        DEFAULT_PORT,
        LOCAL,
        TCP,
        Address,
        Route,
        format_route,
        local,
        parse_address,
        parse_route,
    )
    from ockam.actors.mailbox import Mailbox
    from ockam.actors.message import HERE, Message, Origin, reply_to
    from ockam.actors.node import Node, NodeStatistics
    from ockam.actors.worker import Context, HandlingFailed, Worker, WorkerFactory
    from ockam.errors import AddressInUse, ConnectFailed, FrameTooLarge, InvalidAddress, OckamError, RemoteProtocolError
    from ockam.identity.gate import DENIED, Gate
    from ockam.identity.identity import ANONYMOUS, NODE, Identity
    from ockam.protocol import ERROR, Protocol, ProtocolError
    from ockam.transport.calling import Framing
    from ockam.transport.connection_machine import ConnectionLimits, ConnectionStatistics
    from ockam.transport.frames import BadFrame, FrameReader, FrameWriter
    from ockam.transport.tcp import TcpTransport
    from ockam.transport.tcp_statistics import TcpStatistics
    from ockam.transport.wire import Wire
    from ockam.transport.wire_head import HEAD
    from ockam.transport.wire_legacy import LEGACY

__all__ = [
    "ANONYMOUS",
    "DEFAULT_PORT",
    "DENIED",
    "ERROR",
    "HEAD",
    "HERE",
    "LEGACY",
    "LOCAL",
    "NODE",
    "TCP",
    "Address",
    "AddressInUse",
    "BadFrame",
    "ConnectFailed",
    "ConnectionLimits",
    "ConnectionStatistics",
    "Context",
    "FrameReader",
    "FrameTooLarge",
    "FrameWriter",
    "Framing",
    "Gate",
    "HandlingFailed",
    "Identity",
    "InvalidAddress",
    "Mailbox",
    "Message",
    "Node",
    "NodeStatistics",
    "OckamError",
    "Origin",
    "Protocol",
    "ProtocolError",
    "RemoteProtocolError",
    "Route",
    "TcpStatistics",
    "TcpTransport",
    "Wire",
    "Worker",
    "WorkerFactory",
    "format_route",
    "local",
    "parse_address",
    "parse_route",
    "reply_to",
]

_MODULES = {
    "actors.address": "Address DEFAULT_PORT LOCAL Route TCP format_route local parse_address parse_route",
    "actors.mailbox": "Mailbox",
    "actors.message": "HERE Message Origin reply_to",
    "actors.node": "Node NodeStatistics",
    "actors.worker": "Context HandlingFailed Worker WorkerFactory",
    "errors": "AddressInUse ConnectFailed FrameTooLarge InvalidAddress OckamError RemoteProtocolError",
    "identity.gate": "DENIED Gate",
    "identity.identity": "ANONYMOUS Identity NODE",
    "protocol": "ERROR Protocol ProtocolError",
    "transport.calling": "Framing",
    "transport.connection_machine": "ConnectionLimits ConnectionStatistics",
    "transport.frames": "BadFrame FrameReader FrameWriter",
    "transport.tcp": "TcpTransport",
    "transport.tcp_statistics": "TcpStatistics",
    "transport.wire": "Wire",
    "transport.wire_head": "HEAD",
    "transport.wire_legacy": "LEGACY",
}
"""The names of each module. It is imported at the first use of one of them."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    module = next((module for module, names in _MODULES.items() if name in names.split()), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
